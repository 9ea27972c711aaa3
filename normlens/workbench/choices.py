"""What a user chose: a model and how it is opened, a corpus and how it is read. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

BosChoice = Literal["prepend", "none"]
"""Whether sequences start with the tokenizer's BOS."""


@dataclass(frozen=True)
class ModelChoice:
    """A model and how to open it; equal choices share one opened model.

    Attributes:
        source: an id of :meth:`normlens.workbench.sources.Sources.entries`, a directory or a
            hub id.
        device: torch device.
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``float64``; None for float32.
        revision: of a hub model.
        convert: turn eps-encoded norms into fixed-scale ones first.
    """

    source: str
    device: str = "cpu"
    dtype: str | None = None
    revision: str | None = None
    convert: bool = False

    @property
    def name(self) -> str:
        """The name in tables: a directory's own, else the source."""
        return display_name(self.source)

    @property
    def way(self) -> str:
        """How it is opened, in words; empty for the default way."""
        parts = (
            "" if self.revision is None else f"@{self.revision[:12]}",
            self.dtype or "",
            "" if self.device == "cpu" else self.device,
            "converted" if self.convert else "",
        )
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class CorpusChoice:
    """A corpus and how it is cut into sequences.

    Attributes:
        text: ``books``, or a ``.txt`` or ``.jsonl`` file, or a directory of these.
        sequences: how many are read, spread evenly; 0 reads all.
        context: tokens per sequence; None for the smaller of 512 and the model's own.
        bos: BOS policy.
    """

    text: str = "books"
    sequences: int = 128
    context: int | None = None
    bos: BosChoice = "prepend"


def display_name(source: str) -> str:
    """The name a model has in tables: a directory's own, else the id."""
    path = Path(source)
    return path.resolve().name if path.is_dir() else source


def distinct_names(choices: Sequence[ModelChoice]) -> tuple[str, ...]:
    """One name per choice, told apart by source and way of opening where they would be equal.

    Names that still clash, since the same choice stands twice, are numbered.
    """
    names = [choice.name for choice in choices]
    for tell in (_with_way, _with_source):
        told = [tell(choice, name) for choice, name in zip(choices, names, strict=True)]
        clashing = {name: set[str]() for name in names}
        for name, longer in zip(names, told, strict=True):
            clashing[name].add(longer)
        names = [
            longer if len(clashing[name]) > 1 else name
            for name, longer in zip(names, told, strict=True)
        ]
    seen: Counter[str] = Counter()
    distinct: list[str] = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return tuple(distinct)


def _with_way(choice: ModelChoice, name: str) -> str:
    return f"{name} ({choice.way})" if choice.way else name


def _with_source(choice: ModelChoice, name: str) -> str:
    return f"{name} in {Path(choice.source).parent.name}" if "/" in choice.source else name
