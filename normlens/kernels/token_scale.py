"""The scale of one norm at every token, from the two moments of its input."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from normlens.norms.reference import scale_from_mean_square
from normlens.norms.spec import NormKind, NormSpec


def token_scale(
    spec: NormSpec, mean: Float[Tensor, "*batch"], variance: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """The denominator of a live norm, the would-be one of a scale-free norm.

    * live: ``sqrt(m + eps)``, with ``m = variance`` where the norm centres its input and
      ``m = variance + mean**2 = mean(x**2)`` where it does not;
    * FIXED_SCALE: ``sqrt(m)``; IDENTITY: ``sqrt(variance)``. Neither is applied.

    Args:
        spec: of a norm that is not OPAQUE.
        mean: of the input over its width, in residual units.
        variance: biased, over the same axis.

    Raises:
        ValueError: the kind is OPAQUE.
    """
    centred = spec.centred or spec.kind is NormKind.IDENTITY
    mean_square = variance if centred else variance + mean.square()
    if spec.kind in (NormKind.FIXED_SCALE, NormKind.IDENTITY):
        return mean_square.sqrt()
    return scale_from_mean_square(spec, mean_square)


def constant_scale(spec: NormSpec) -> float | None:
    """The constant a scale-free norm divides by, None for a norm with a scale of its own.

    An eps-encoded norm divides by ``sqrt(eps)``; its stored gain carries the inverse.
    """
    if spec.kind is NormKind.IDENTITY:
        return 1.0
    return spec.fixed_scale if spec.kind is NormKind.FIXED_SCALE else None
