"""What attention and MLP of every block read, as far as a pass sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from normlens.kernels.residual_roles import ON_RESIDUAL
from normlens.models.blocks import block_modules
from normlens.models.lens import Lens, NormSite, Role


@dataclass(frozen=True)
class LinearInput:
    """What attention or the MLP of a block reads.

    Attributes:
        point: name of the point that has it.
        layer: block index.
        feeds: which of the two reads it (attention where one input feeds both).
        site: the norm whose output it is, None where it is the residual stream itself.
    """

    point: str
    layer: int
    feeds: Literal["attention", "mlp"]
    site: NormSite | None


def linear_inputs(lens: Lens) -> tuple[LinearInput, ...]:
    """The inputs of attention and MLP of every block, in order, as far as they are known.

    The output of the norm before them; the block's input where no norm stands before
    attention; the output of the norm after attention where that one feeds the MLP
    (post-norm). An MLP that reads the bare stream inside its block is left out.
    """
    return tuple(_linear_inputs(lens))


def _linear_inputs(lens: Lens) -> Iterator[LinearInput]:
    at = {(site.layer, site.role): site for site in lens.sites}
    for layer in range(depth(lens)):
        before = at.get((layer, Role.PRE_ATTN))
        point = f"residual.{layer}" if before is None else _point(before)
        yield LinearInput(point, layer, "attention", before)
        after = at.get((layer, Role.EXIT_ATTN), at.get((layer, Role.POST_ATTN)))
        mlp = at.get((layer, Role.PRE_MLP))
        if mlp is None and before is None and after is not None and after.feeds:
            mlp = after
        if mlp is not None:
            yield LinearInput(_point(mlp), layer, "mlp", mlp)


def _point(site: NormSite) -> str:
    return f"norm.{site.label}"


def unseen_mlps(lens: Lens) -> int:
    """How many blocks have an MLP whose input is no point of the pass."""
    inputs = linear_inputs(lens)
    bare = {i.layer for i in inputs if i.feeds == "attention" and i.site is None}
    return len(bare - {i.layer for i in inputs if i.feeds == "mlp"})


def depth(lens: Lens) -> int:
    """Number of blocks."""
    return len(block_modules(lens.model))


def residual_width(lens: Lens) -> int:
    """Number of dimensions of the residual stream."""
    sites = (site.spec.width for site in lens.sites if site.role in ON_RESIDUAL)
    return next(sites, int(lens.model.config.hidden_size))
