"""Float64 reference of every norm, split as centre -> scale -> affine.

    centred = x - mean(x)        or x
    scale   = sqrt(mean(centred**2) + eps)   or a constant
    xhat    = centred / scale
    y       = xhat * gamma + beta

The nonlinearity is the scale alone. Its Jacobian-vector product, with
``c = centre(v)``, is ``J v = gamma * (c / scale - xhat * mean(centred * c) / scale**2)``
for a live scale and ``gamma * c / scale`` for a fixed one.

DyT has no scale: ``xhat = tanh(alpha * x)`` elementwise and
``J v = gamma * alpha * (1 - xhat**2) * v``.

Sources: LayerNorm 1607.06450 eq. 3-4; RMSNorm 1910.07467 eq. 4; DyT 2503.10622 eq. 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.norms.spec import NormKind, NormSpec


@dataclass(frozen=True)
class NormParts:
    """The steps of one norm on one input, float64.

    ``scale`` has a last axis of size 1; it is None for a kind without one.
    """

    centred: Float[Tensor, "*batch width"]
    scale: Float[Tensor, "*batch 1"] | None
    xhat: Float[Tensor, "*batch width"]
    y: Float[Tensor, "*batch width"]


def apply_norm(spec: NormSpec, x: Tensor, gamma: Tensor | None, beta: Tensor | None) -> NormParts:
    """Evaluate a norm from its spec in float64.

    Args:
        spec: any kind but OPAQUE.
        x: input ``[..., width]``, any float dtype.
        gamma: effective gain (unit offset already added) or None for 1; ``[width]``, or
            any shape that broadcasts, such as ``[head width]``.
        beta: bias or None for 0, likewise.

    Raises:
        ValueError: the kind is OPAQUE, or the last axis is not ``spec.width``.
    """
    if x.shape[-1] != spec.width:
        raise ValueError(f"input has width {x.shape[-1]}, the norm has {spec.width}")
    x = x.double()
    centred = centre(spec, x)
    if spec.kind is NormKind.DYT:
        scale, xhat = None, (_alpha(spec) * x).tanh()
    else:
        scale = scale_of(spec, centred)
        xhat = centred / scale
    y = xhat if gamma is None else xhat * gamma.double()
    if beta is not None:
        y = y + beta.double()
    return NormParts(centred, scale, xhat, y)


def centre(spec: NormSpec, x: Tensor) -> Tensor:
    """``x - mean(x)`` over the last axis where the spec is centred, else ``x``."""
    return x - x.mean(-1, keepdim=True) if spec.centred else x


def scale_of(spec: NormSpec, centred: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch 1"]:
    """The denominator for an already centred input."""
    return scale_from_mean_square(spec, centred.square().mean(-1, keepdim=True))


def scale_from_mean_square(spec: NormSpec, mean_square: Tensor) -> Tensor:
    """The denominator from ``mean(centred**2)``; same shape as ``mean_square``.

    Raises:
        ValueError: the kind has no scale, or none that is known.
    """
    if not spec.kind.has_scale:
        raise ValueError(f"a norm of kind {spec.kind.value} has no known scale")
    if spec.kind.has_live_scale:
        return (mean_square + (spec.eps or 0.0)).sqrt()
    constant = spec.fixed_scale if spec.kind is NormKind.FIXED_SCALE else 1.0
    return torch.full_like(mean_square, constant if constant is not None else 1.0)


def jacobian_vector_product(
    spec: NormSpec, x: Tensor, v: Tensor, gamma: Tensor | None
) -> Float[Tensor, "*batch width"]:
    """``J(x) v`` of the norm, float64; the directions it annihilates give 0.

    LayerNorm annihilates the ones direction and, up to eps, the centred input itself.
    """
    parts = apply_norm(spec, x, None, None)
    c = centre(spec, v.double())
    if parts.scale is None:
        return _times(_alpha(spec) * (1 - parts.xhat.square()) * c, gamma)
    out = c / parts.scale
    if spec.kind.has_live_scale:
        out = out - parts.xhat * (parts.centred * c).mean(-1, keepdim=True) / parts.scale.square()
    return _times(out, gamma)


def _times(value: Tensor, gamma: Tensor | None) -> Tensor:
    return value if gamma is None else value * gamma.double()


def _alpha(spec: NormSpec) -> float:
    if spec.alpha is None:
        raise ValueError("a spec of kind dyt needs its alpha")
    return spec.alpha
