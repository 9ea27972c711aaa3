"""Where ``outliers`` looks and in which basis.

Points are the residual stream before every block and after the last, and the inputs of
attention and MLP. Bases are the native one and, for the rotation control, two more:

* ``gain_free``: ``xhat = (y - beta) / gamma`` at the output of a norm, so that what the
  rotation changes can be told from what leaving out the gain changes;
* ``rotated``: ``xhat Q`` at norms; ``r Q`` in the residual stream, with ``r - mean(r)`` for
  ``r`` where all norms that read the stream centre it.

These are the activations of the rotated model: folding ``gamma`` and ``beta`` into the
linears a norm feeds, taking the mean out of all that writes to the stream (where the norms
centre), turning LayerNorm into RMSNorm and multiplying writers by ``Q`` and readers by
``Q^T`` changes no logit, and ``rms(r Q) = rms(r)``.

Sources: SliceGPT 2401.15024 section 3; QuaRot 2404.00456 section 4; the LayerNorm to
RMSNorm step 2305.14858.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.models.blocks import block_modules
from normlens.models.lens import Lens, NormSite, Role
from normlens.models.parameters import gain_and_bias
from normlens.norms.spec import NormKind

TOKEN_WISE = (NormKind.LAYER_NORM, NormKind.RMS_NORM, NormKind.FIXED_SCALE, NormKind.IDENTITY)
"""Kinds that commute with a rotation once gain, bias and mean are out of the way."""

WORST_DIVISION = 1e-3
"""Largest relative error that dividing by the gain may bring into ``xhat``."""


class Basis(StrEnum):
    """The basis an activation is looked at in."""

    NATIVE = "native"
    GAIN_FREE = "gain_free"
    ROTATED = "rotated"


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


@dataclass(frozen=True)
class View:
    """A point in a basis.

    Attributes:
        point: name of the point.
        depth: blocks before it.
        order: rank of the point in order of execution.
        basis: the basis.
        residual: whether it is a point of the residual stream.
        input: what it feeds, None for a point that only the residual stream has.
        missing: why it cannot be seen, empty where it can.
    """

    point: str
    depth: int
    order: int
    basis: Basis
    residual: bool
    input: LinearInput | None
    missing: str = ""


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
        after = at.get((layer, Role.POST_ATTN))
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
    """Number of dimensions of the residual stream, as its norms have it."""
    roles = (Role.PRE_ATTN, Role.PRE_MLP, Role.POST_ATTN, Role.POST_MLP, Role.FINAL)
    return next(site.spec.width for site in lens.sites if site.role in roles)


def views(lens: Lens, *, rotate: bool) -> tuple[View, ...]:
    """Every point in every basis, in order of execution."""
    return tuple(_views(lens, rotate=rotate))


def _views(lens: Lens, *, rotate: bool) -> Iterator[View]:
    inputs = linear_inputs(lens)
    order = 0
    for layer in range(depth(lens) + 1):
        of_layer = [i for i in inputs if i.layer == layer]
        bare = next((i for i in of_layer if i.site is None), None)
        yield View(f"residual.{layer}", layer, order, Basis.NATIVE, True, bare)
        if rotate:
            yield View(f"residual.{layer}", layer, order, Basis.ROTATED, True, bare)
        order += 1
        for one in of_layer:
            if one.site is None:
                continue
            yield View(one.point, layer, order, Basis.NATIVE, False, one)
            if rotate:
                why = why_no_gain_free(lens, one.site)
                yield View(one.point, layer, order, Basis.GAIN_FREE, False, one, why)
                yield View(one.point, layer, order, Basis.ROTATED, False, one, why)
            order += 1


def why_no_gain_free(lens: Lens, site: NormSite) -> str:
    """Why ``xhat`` cannot be had from the output of a norm; empty where it can."""
    if site.spec.kind not in TOKEN_WISE:
        return f"{site.label} is {site.spec.kind.value}, which a rotation does not commute with"
    if site.on_stream:
        return f"the output of {site.label} is the residual stream, so its gain cannot be folded"
    if site.spec.eps_encoded:
        return f"{site.label} stores its scale inside its gain; convert it to a fixed scale first"
    gamma, beta = gain_and_bias(lens, site)
    if gamma is None:
        return ""
    smallest = float(gamma.abs().min())
    bias = 0.0 if beta is None else float(beta.abs().max())
    if smallest == 0 or bias * torch.finfo(lens.model.dtype).eps > WORST_DIVISION * smallest:
        return f"a gain of {site.label} is too small to divide by"
    return ""


def in_basis(
    view: View, x: Float[Tensor, "batch pos d"], lens: Lens, seed: int
) -> Float[Tensor, "batch pos d"]:
    """An activation, float32 or wider, in the basis of a view that is not missing."""
    if view.basis is Basis.NATIVE:
        return x
    site = view.input.site if view.input is not None else None
    if not view.residual and site is not None:
        gamma, beta = gain_and_bias(lens, site)
        if beta is not None:
            x = x - beta.to(x.dtype)
        if gamma is not None:
            x = x / gamma.to(x.dtype)
    elif centres_residual(lens):
        x = x - x.mean(-1, keepdim=True)
    if view.basis is Basis.GAIN_FREE:
        return x
    return x @ rotation(x.shape[-1], seed).to(x)


def centres_residual(lens: Lens) -> bool:
    """Whether all norms that read the residual stream centre it, so its mean is never read."""
    readers = [s for s in lens.sites if s.role in (Role.PRE_ATTN, Role.PRE_MLP)]
    finals = [s for s in lens.sites if s.role is Role.FINAL]
    return bool(readers) and all(site.spec.centred for site in (*readers, *finals))


@lru_cache(maxsize=2)  # a function of its arguments alone, minutes of work at large widths
def rotation(width: int, seed: int) -> Float[Tensor, "d d"]:
    """A random orthogonal matrix, float64, uniform by Haar measure.

    QR of a Gaussian matrix with the signs of R's diagonal moved into Q (Mezzadri 2007).
    """
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(width, width, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    return q * r.diagonal().sign()
