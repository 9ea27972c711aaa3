"""The scale of one norm at every token, from what a pass or a hook saw of its input."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.forward import input_moments, measured_scale, scale_is_measured
from normlens.capture.protocol import Observed
from normlens.models.lens import NormSite
from normlens.norms.reference import scale_from_mean_square, scale_of
from normlens.norms.spec import NormKind, NormSpec


def token_scale(
    spec: NormSpec,
    mean: Float[Tensor, "*batch"],
    variance: Float[Tensor, "*batch"],
    measured: Float[Tensor, "*batch"] | None = None,
) -> Float[Tensor, "*batch"]:
    """The denominator of a live norm, the would-be one of a scale-free norm.

    * live: a function of ``m``, for LayerNorm and RMSNorm ``sqrt(m + eps)``, with
      ``m = variance`` where the norm centres its input and
      ``m = variance + mean**2 = mean(x**2)`` where it does not; for kinds of which it is no
      such function (L1, CRMS) what was measured;
    * FIXED_SCALE: ``sqrt(m)``; other scale-free kinds: ``sqrt(variance)``. Not applied.

    Args:
        spec: of a norm that has a scale.
        mean: of the input over its width, in residual units.
        variance: biased, over the same axis.
        measured: the scale itself, where it does not follow from the moments.

    Raises:
        ValueError: the kind has no scale (OPAQUE, elementwise kinds), or one that has to be
            measured and was not.
    """
    if scale_is_measured(spec):
        if measured is None:
            raise ValueError(f"the scale of a norm of kind {spec.kind.value} has to be measured")
        return measured
    free = spec.kind.linear and spec.kind is not NormKind.FIXED_SCALE
    mean_square = variance if spec.centred or free else variance + mean.square()
    if spec.kind.linear:
        return mean_square.sqrt()
    return scale_from_mean_square(spec, mean_square)


def observed_scale(site: NormSite, observed: Observed) -> Float[Tensor, "batch pos *head"]:
    """:func:`token_scale` of a site from what a pass left of its input."""
    moments = observed.norm_moments[site.label]
    return token_scale(site.spec, moments[0], moments[1], observed.norm_scales.get(site.label))


def input_scale(spec: NormSpec, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch"]:
    """:func:`token_scale` of a norm's input, at least float32."""
    if scale_is_measured(spec):
        return measured_scale(spec, x)
    mean, variance = input_moments(x)
    return token_scale(spec, mean, variance)


def constant_scale(spec: NormSpec, positions: int) -> Float[Tensor, " pos"] | None:
    """The constants that a scale-free norm divides by at the first positions, float64.

    1 for IDENTITY. None for a norm with a scale of its own, and for one that divides every
    feature by another constant (batch statistics). An eps-encoded norm divides by
    ``sqrt(eps)``; its stored gain carries the inverse.
    """
    if spec.kind not in (NormKind.IDENTITY, NormKind.FIXED_SCALE):
        return None
    nothing = torch.zeros(positions, spec.width, dtype=torch.float64)
    return scale_of(spec, nothing)[:, 0]
