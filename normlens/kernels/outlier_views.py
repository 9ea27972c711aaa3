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
``Q^T`` changes no logit, and ``rms(r Q) = rms(r)``. A norm whose scale is no function of the
mean square (L1, CRMS), an elementwise one, and one on the stream itself (post-LN) do not
commute with ``Q``: then there is no such model, and the view says so.

Sources: SliceGPT 2401.15024 section 3; QuaRot 2404.00456 section 4; the LayerNorm to
RMSNorm step 2305.14858.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.kernels.outlier_inputs import LinearInput, depth, linear_inputs
from normlens.kernels.residual_roles import ON_RESIDUAL, READERS
from normlens.models.affine import site_affine
from normlens.models.lens import Lens, NormSite, Role
from normlens.norms.spec import NormKind

WORST_DIVISION = 1e-3
"""Largest relative error that dividing by the gain may bring into ``xhat``."""


class Basis(StrEnum):
    """The basis an activation is looked at in."""

    NATIVE = "native"
    GAIN_FREE = "gain_free"
    ROTATED = "rotated"


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


@dataclass(frozen=True)
class _Place:
    """A point of the pass, before anything is said of bases."""

    point: str
    depth: int
    order: int
    input: LinearInput | None

    @property
    def residual(self) -> bool:
        return self.input is None or self.input.site is None

    def views(self, lens: Lens, *, rotate: bool) -> Iterator[View]:
        made = self.point, self.depth, self.order
        yield View(*made, Basis.NATIVE, self.residual, self.input)
        if not rotate:
            return
        if self.input is None or self.input.site is None:
            yield View(*made, Basis.ROTATED, True, self.input, why_no_rotation(lens))
            return
        why = why_no_gain_free(lens, self.input.site)
        yield View(*made, Basis.GAIN_FREE, False, self.input, why)
        yield View(*made, Basis.ROTATED, False, self.input, why)


def views(lens: Lens, *, rotate: bool) -> tuple[View, ...]:
    """Every point in every basis, in order of execution."""
    places = _places(lens)
    return tuple(view for place in places for view in place.views(lens, rotate=rotate))


def views_at(lens: Lens, point: str, *, rotate: bool) -> tuple[View, ...]:
    """Those of :func:`views` that look at one point; nothing is worked out for the others."""
    here = [place for place in _places(lens) if place.point == point]
    return tuple(view for place in here for view in place.views(lens, rotate=rotate))


def _places(lens: Lens) -> Iterator[_Place]:
    inputs = linear_inputs(lens)
    order = itertools.count()
    for layer in range(depth(lens) + 1):
        of_layer = [i for i in inputs if i.layer == layer]
        bare = next((i for i in of_layer if i.site is None), None)
        yield _Place(f"residual.{layer}", layer, next(order), bare)
        for one in of_layer:
            if one.site is not None:
                yield _Place(one.point, layer, next(order), one)


def why_no_rotation(lens: Lens) -> str:
    """Why rotating the residual stream would change the model; empty where it would not."""
    for site in lens.sites:
        if site.role not in ON_RESIDUAL:
            continue
        if site.on_stream and site.spec.kind is not NormKind.IDENTITY:
            return f"{site.label} is on the residual stream, so its gain cannot be folded"
        if site.role in READERS and not site.spec.kind.quadratic:
            return _does_not_commute(site)
    return ""


def why_no_gain_free(lens: Lens, site: NormSite) -> str:
    """Why ``xhat`` cannot be had from the output of a norm; empty where it can."""
    if not site.spec.kind.quadratic:
        return _does_not_commute(site)
    if site.on_stream:
        return f"the output of {site.label} is the residual stream, so its gain cannot be folded"
    if site.spec.eps_encoded:
        return f"{site.label} stores its scale inside its gain; convert it to a fixed scale first"
    gamma, beta = site_affine(lens, site)
    if gamma is None:
        return ""
    smallest = float(gamma.abs().min())
    bias = 0.0 if beta is None else float(beta.abs().max())
    if smallest == 0 or bias * torch.finfo(lens.model.dtype).eps > WORST_DIVISION * smallest:
        return f"a gain of {site.label} is too small to divide by"
    return ""


def _does_not_commute(site: NormSite) -> str:
    return f"{site.label} is {site.spec.kind.value}, which a rotation does not commute with"


def in_basis(
    view: View, x: Float[Tensor, "batch pos d"], lens: Lens, seed: int
) -> Float[Tensor, "batch pos d"]:
    """An activation, float32 or wider, in the basis of a view that is not missing."""
    if view.basis is Basis.NATIVE:
        return x
    site = view.input.site if view.input is not None else None
    if not view.residual and site is not None:
        gamma, beta = site_affine(lens, site)
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
    readers = [site for site in lens.sites if site.role in READERS]
    in_blocks = any(site.role is not Role.FINAL for site in readers)
    return in_blocks and all(site.spec.centred for site in readers)


@lru_cache(maxsize=2)  # a function of its arguments alone, minutes of work at large widths
def rotation(width: int, seed: int) -> Float[Tensor, "d d"]:
    """A random orthogonal matrix, float64, uniform by Haar measure.

    QR of a Gaussian matrix with the signs of R's diagonal moved into Q (Mezzadri 2007).
    """
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(width, width, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    return q * r.diagonal().sign()
