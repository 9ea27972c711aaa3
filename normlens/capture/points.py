"""Where a pass hands activations over: points of the forward pass and their modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from normlens.capture.tree import Tree
from normlens.catalog.declaration import Need
from normlens.models.lens import NormSite


@dataclass(frozen=True)
class Point:
    """One place of the forward pass.

    Attributes:
        need: what kind of activation it is.
        layer: block index. The residual stream has one point more than blocks: point
            ``i`` is the input of block ``i``, the last one the output of the last block,
            before the final norm. None outside blocks.
        name: unique among the points of a pass: ``residual.3``, ``norm.3.pre_attn``,
            ``norm_input.3.pre_attn``, ``attention.3``.
        site: the norm, for its input or output.
    """

    need: Need
    layer: int | None
    name: str
    site: NormSite | None = None


@dataclass(frozen=True)
class Place:
    """A point and the module to hook for it."""

    point: Point
    module: nn.Module
    where: Literal["input", "output"]


def places(tree: Tree, need: Need) -> Sequence[Place]:
    """The points of one need that modules have; empty for needs without any."""
    match need:
        case Need.RESIDUAL:
            return tuple(_residual(tree))
        case Need.NORM_OUTPUT:
            return tuple(_norms(tree, need, "output"))
        case Need.NORM_INPUT:
            return tuple(_norms(tree, need, "input"))
        case _:
            return ()


def residual_points(layers: int) -> tuple[Point, ...]:
    """The points of the residual stream of a model with that many blocks."""
    return tuple(Point(Need.RESIDUAL, i, f"residual.{i}") for i in range(layers + 1))


def _residual(tree: Tree) -> Iterator[Place]:
    blocks = tree.blocks
    *before, after = residual_points(len(blocks))
    for point, block in zip(before, blocks, strict=True):
        yield Place(point, block, "input")
    yield Place(after, blocks[-1], "output")


def _norms(tree: Tree, need: Need, where: Literal["input", "output"]) -> Iterator[Place]:
    prefix = "norm" if need is Need.NORM_OUTPUT else "norm_input"
    for site in tree.lens.sites:
        point = Point(need, site.layer, f"{prefix}.{site.label}", site)
        yield Place(point, tree.site_module(site), where)
