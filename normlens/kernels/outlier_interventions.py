"""Ablations as hooks; the modules and their weights are not touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from normlens.hooks import Hook
from normlens.kernels.outlier_inputs import linear_inputs
from normlens.kernels.outlier_targets import Entry
from normlens.models.blocks import block_modules
from normlens.models.lens import Lens

Masks = Mapping[Entry, Bool[Tensor, "batch pos"]]


@dataclass(frozen=True)
class Variant:
    """One ablation.

    Attributes:
        what: ``dimensions`` or ``massive``.
        how: ``residual`` or ``norm_output`` for dimensions; ``zero`` or ``mean`` for entries.
        chosen: ``outlier`` or ``random``.
        seed: of a random choice, else None.
        dimensions: what is set to 0; empty for entries.
        values: what each entry is set to; empty for dimensions.
    """

    what: str
    how: str
    chosen: str
    seed: int | None = None
    dimensions: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    def hooks(self, lens: Lens, masks: Masks) -> tuple[Hook, ...]:
        """The hooks of the ablation; ``masks`` says at which tokens an entry is set."""
        if self.what == "massive":
            return tuple(
                _at_depth(lens, entry.depth, _SetEntry(mask, entry.dimension, value))
                for (entry, mask), value in zip(masks.items(), self.values, strict=True)
            )
        zero = _Zero(torch.tensor(self.dimensions, dtype=torch.int64))
        if self.how == "residual":
            depths = len(block_modules(lens.model)) + 1
            return tuple(_at_depth(lens, depth, zero) for depth in range(depths))
        return tuple(
            Hook(lens.module(one.site), "output", zero, one.point)
            for one in linear_inputs(lens)
            if one.site is not None
        )


def variants(
    outliers: Sequence[int], width: int, seeds: int, means: Sequence[float], *, norms: bool
) -> tuple[Variant, ...]:
    """Every ablation: the outliers and random dimensions, then zero and mean of entries.

    Args:
        outliers: dimensions to set to 0.
        width: of the residual stream; random dimensions are drawn from the others.
        seeds: number of random draws.
        means: of the entries.
        norms: whether there are norms whose outputs can be ablated.
    """
    made: list[Variant] = []
    draws = [random_dimensions(outliers, width, seed) for seed in range(seeds)]
    for how in ("residual", "norm_output") if norms else ("residual",):
        made.append(Variant("dimensions", how, "outlier", None, tuple(outliers)))
        made += [
            Variant("dimensions", how, "random", seed, drawn) for seed, drawn in enumerate(draws)
        ]
    made.append(Variant("massive", "zero", "outlier", values=(0.0,) * len(means)))
    made.append(Variant("massive", "mean", "outlier", values=tuple(means)))
    return tuple(made)


def random_dimensions(outliers: Sequence[int], width: int, seed: int) -> tuple[int, ...]:
    """As many dimensions as there are outliers, drawn from the others without replacement."""
    others = [j for j in range(width) if j not in set(outliers)]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(others), generator=generator)[: len(outliers)]
    return tuple(sorted(others[i] for i in order.tolist()))


def _at_depth(lens: Lens, depth: int, fn: _Zero | _SetEntry) -> Hook:
    blocks = block_modules(lens.model)
    if depth < len(blocks):
        return Hook(blocks[depth], "input", fn, f"residual.{depth}")
    return Hook(blocks[-1], "output", fn, f"residual.{depth}")


@dataclass(frozen=True, eq=False)
class _Zero:
    dimensions: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x.index_fill(-1, self.dimensions.to(x.device), 0.0)


@dataclass(frozen=True, eq=False)
class _SetEntry:
    mask: Bool[Tensor, "batch pos"]
    dimension: int
    value: float

    def __call__(self, x: Tensor) -> Tensor:
        changed = x.clone()
        column = x[..., self.dimension]
        changed[..., self.dimension] = torch.where(self.mask, self.value, column)
        return changed
