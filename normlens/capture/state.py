"""Mergeable statistics: named tensors, each with a declared reduction.

Merging and storing are written here once, so that no analysis can get them wrong. Sums
are float64 (or int64 counts); a merge in any grouping gives the same numbers up to float64
rounding, and merging in shard order gives the same bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from normlens.atomic import atomic_file
from normlens.errors import StoreMismatch


class Reduction(StrEnum):
    """How two tensors of the same name become one."""

    SUM = "sum"
    """Elementwise sum: counts, moments, histograms, bootstrap replicates."""
    MAX = "max"
    MIN = "min"
    ROWS = "rows"
    """Concatenation along the first axis, in shard order."""
    TOP = "top"
    """Rows ``[rank, column]``, largest first column kept; ties go to the smaller second column."""


@dataclass
class State:
    """A set of named statistics.

    Attributes:
        tensors: the values, on the CPU.
        reductions: how each merges.
        limits: rows kept for each ``TOP`` entry.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    reductions: dict[str, Reduction] = field(default_factory=dict[str, Reduction])
    limits: dict[str, int] = field(default_factory=dict[str, int])

    def declare(
        self, name: str, initial: Tensor, reduction: Reduction = Reduction.SUM, *, limit: int = 0
    ) -> None:
        """Add a statistic with its neutral value (zeros; ±inf; zero rows)."""
        self.tensors[name] = initial
        self.reductions[name] = reduction
        if reduction is Reduction.TOP:
            self.limits[name] = limit

    def add(self, name: str, value: Tensor) -> None:
        """Reduce ``value`` into the statistic ``name``."""
        value = value.detach().to("cpu", self.tensors[name].dtype)
        self.tensors[name] = self._reduce(name, self.tensors[name], value)

    def merge(self, other: State) -> None:
        """Reduce another State of the same declarations into this one."""
        for name, value in other.tensors.items():
            self.tensors[name] = self._reduce(name, self.tensors[name], value)

    def _reduce(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        match self.reductions[name]:
            case Reduction.SUM:
                return a + b
            case Reduction.MAX:
                return torch.maximum(a, b)
            case Reduction.MIN:
                return torch.minimum(a, b)
            case Reduction.ROWS:
                return torch.cat([a, b])
            case Reduction.TOP:
                rows = torch.cat([a, b])
                rows = rows[torch.argsort(rows[:, 1], stable=True)]
                rows = rows[torch.argsort(rows[:, 0], descending=True, stable=True)]
                return rows[: self.limits[name]]

    def save(self, path: Path, metadata: dict[str, str]) -> None:
        """Write atomically as safetensors."""
        meta = {
            **metadata,
            "reductions": json.dumps(self.reductions),
            "limits": json.dumps(self.limits),
        }
        with atomic_file(path) as temporary:
            save_file(
                {k: v.contiguous() for k, v in self.tensors.items()}, temporary, metadata=meta
            )

    @staticmethod
    def load(path: Path, expected: dict[str, str]) -> State:
        """Read a State whose metadata must contain ``expected``.

        Raises:
            StoreMismatch: unreadable, or stored by another computation.
        """
        try:
            with safe_open(path, framework="pt") as file:
                meta = file.metadata() or {}
                # safe_open gives no mapping: it cannot be iterated over.
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError, ValueError) as error:
            raise StoreMismatch(f"stored shard {path} is unreadable; delete it: {error}") from error
        for key, value in expected.items():
            if meta.get(key) != value:
                raise StoreMismatch(
                    f"stored shard {path} belongs to another computation ({key} differs); "
                    "use another store or delete it"
                )
        reductions = {k: Reduction(v) for k, v in json.loads(meta["reductions"]).items()}
        return State(tensors, reductions, json.loads(meta["limits"]))
