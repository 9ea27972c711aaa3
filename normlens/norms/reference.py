"""Float64 reference of every norm, split as centre -> scale -> affine.

    centred = x - mean(x)        or x
    scale   = a statistic of the token, or a constant; None for an elementwise kind
    xhat    = centred / scale    or f(x)
    y       = factor * (xhat * gamma + beta)

The nonlinearity is the scale alone, or f. The Jacobian-vector product, with
``c = centre(v)`` and ``ds`` the derivative of the scale along ``c``, is
``J v = factor * gamma * (c - xhat * ds) / scale``, or ``factor * gamma * f'(x) * c``. What
each kind has for them is in :mod:`normlens.norms.kinds`. For a batch kind it is the map of
eval mode, with gain and bias into which the running statistics are folded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from normlens.norms.kind import NormKind
from normlens.norms.kinds import KINDS
from normlens.norms.maps import NormMap, QuadraticMap
from normlens.norms.spec import NormSpec


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
    norm_map = _map(spec)
    centred = centre(spec, x.double())
    scale, xhat = norm_map.scale(spec, centred), norm_map.xhat(spec, centred)
    y = xhat if gamma is None else xhat * gamma.double()
    if beta is not None:
        y = y + beta.double()
    return NormParts(centred, scale, xhat, y if spec.factor == 1 else y * spec.factor)


def centre(spec: NormSpec, x: Tensor) -> Tensor:
    """``x - mean(x)`` over the last axis where the spec is centred, else ``x``."""
    return x - x.mean(-1, keepdim=True) if spec.centred else x


def scale_of(spec: NormSpec, centred: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch 1"]:
    """The denominator for an already centred input.

    Raises:
        ValueError: the kind has no scale, or none that is known.
    """
    scale = _map(spec).scale(spec, centred)
    if scale is None:
        raise ValueError(f"a norm of kind {spec.kind.value} has no known scale")
    return scale


def scale_from_mean_square(spec: NormSpec, mean_square: Tensor) -> Tensor:
    """The denominator from ``mean(centred**2)``; same shape as ``mean_square``.

    Args:
        spec: of a kind that is ``quadratic``.
        mean_square: of any shape.

    Raises:
        ValueError: the kind has no scale, none that is known, or one that is a function of
            more than the mean square.
    """
    norm_map = _map(spec)
    if not spec.kind.has_scale:
        raise ValueError(f"a norm of kind {spec.kind.value} has no known scale")
    if not isinstance(norm_map, QuadraticMap):
        raise ValueError(
            f"the scale of a norm of kind {spec.kind.value} does not follow from the mean square"
        )
    return norm_map.from_mean_square(spec, mean_square)


def jacobian_vector_product(
    spec: NormSpec, x: Tensor, v: Tensor, gamma: Tensor | None
) -> Float[Tensor, "*batch width"]:
    """``J(x) v`` of the norm, float64; the directions it annihilates give 0.

    Raises:
        ValueError: the kind is OPAQUE.
    """
    centred = centre(spec, x.double())
    out = _map(spec).tangent(spec, centred, centre(spec, v.double()))
    if gamma is not None:
        out = out * gamma.double()
    return out if spec.factor == 1 else out * spec.factor


def annihilated(spec: NormSpec, x: Tensor) -> Float[Tensor, "*batch k width"]:
    """Unit directions d with ``J(x) d = 0``, float64; k may be 0.

    * the all-ones direction where the norm is centred: exactly;
    * the centred input where each token has a live scale: up to eps, ``J d`` being
      ``eps / scale**2`` (L1: ``eps / scale``) of what a constant scale gives; exactly for
      L2 and ScaleNorm.

    A direction of length 0 (a constant input, centred) stays 0.

    Args:
        spec: any kind but OPAQUE.
        x: input ``[..., width]``.

    Raises:
        ValueError: the kind is OPAQUE.
    """
    _map(spec)
    x = x.double()
    directions: list[Tensor] = []
    if spec.centred:
        directions.append(torch.ones_like(x))
    if spec.kind.has_live_scale:
        directions.append(centre(spec, x))
    if not directions:
        return x.new_zeros((*x.shape[:-1], 0, x.shape[-1]))
    return functional.normalize(torch.stack(directions, -2), dim=-1, eps=0.0).nan_to_num()


def _map(spec: NormSpec) -> NormMap:
    if spec.kind is NormKind.OPAQUE:
        raise ValueError("a norm of kind opaque has no known scale and no known output")
    return KINDS[spec.kind].norm_map
