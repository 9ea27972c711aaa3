"""From a norm module to its spec: kind and constants, read from the module itself.

Class membership decides, never a config; :mod:`normlens.models.verify` then recomputes
the module's output from the spec, so a subclass that computes something else is found.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from normlens.models.norm_classes import (
    NO_CLASSES,
    NormClasses,
    known_class,
    registered,
    spec_of_class,
)
from normlens.norms import NormKind, NormModule, NormSpec, ScaledNorm, torch_spec

HUGE_EPS = 1e6
"""From here on an eps is no guard against division by zero but a stored scale."""

DWARFING_RATIO = 1e6
"""From this ratio of eps to the variance on, the scale is constant to 5e-7 relative."""

LINEAR_RATIO = 1e4
"""Below this ratio even a norm with a huge eps is not linear to 5e-5 and counts as live."""


def is_norm(module: nn.Module, classes: NormClasses = NO_CLASSES) -> bool:
    """Whether the module is of a norm class that :func:`live_spec` knows or a user's own."""
    torch_or_ours = (nn.LayerNorm, nn.RMSNorm, NormModule, ScaledNorm)
    known = isinstance(module, torch_or_ours) or known_class(module) is not None
    return known or registered(module, classes) is not None


def live_spec(module: nn.Module, width: int) -> NormSpec:
    """The spec a module has by its class, whatever the size of its eps.

    A module of an unknown class, or one that does not normalise exactly the last axis of
    size ``width``, is OPAQUE.
    """
    known = known_class(module)
    if known is not None:
        return spec_of_class(module, known, width)
    match module:
        case nn.Identity():
            return NormSpec(NormKind.IDENTITY, width)
        case ScaledNorm():
            inner = live_spec(module.norm, width)
            return replace(inner, factor=module.factor) if _is_known(inner) else inner
        case NormModule():
            spec = module.spec
            return spec if spec.width == width else NormSpec(NormKind.OPAQUE, width)
        case nn.LayerNorm() | nn.RMSNorm():
            return torch_spec(module, width)
        case _:
            return NormSpec(NormKind.OPAQUE, width)


def candidate_specs(
    module: nn.Module, width: int, variance: float, classes: NormClasses = NO_CLASSES
) -> tuple[NormSpec, ...]:
    """Specs to verify, the preferred one first.

    A norm with its eps under the root (LayerNorm, RMSNorm) that dwarfs ``variance`` is a
    fixed-scale norm stored as a live one; the live spec stays second.

    Args:
        module: a norm module.
        width: size of the axis it normalises.
        variance: the largest ``mean(centred**2)`` over tokens that it met on a sample.
        classes: a user's own norm classes; what they say of a module is the only candidate.
    """
    describe = registered(module, classes)
    if describe is not None:
        spec = describe(module)
        return (spec if spec.width == width else NormSpec(NormKind.OPAQUE, width),)
    live = live_spec(module, width)
    if live.kind.eps_under_root and eps_dwarfs(live.eps, variance):
        return eps_encoded_spec(live), live
    return (live,)


def has_huge_eps(spec: NormSpec) -> bool:
    """Whether an eps was put where a scale belongs, judged without any input."""
    return spec.kind.eps_under_root and (spec.eps or 0.0) >= HUGE_EPS


def eps_dwarfs(eps: float | None, variance: float) -> bool:
    """Whether ``sqrt(variance + eps)`` is a constant for inputs up to ``variance``.

    True for a ratio of :data:`DWARFING_RATIO`, and for :data:`LINEAR_RATIO` already where
    eps is :data:`HUGE_EPS`. An input without variance says nothing about an ordinary eps.
    """
    eps = eps or 0.0
    ratio = LINEAR_RATIO if eps >= HUGE_EPS else DWARFING_RATIO
    return eps >= ratio * variance and (eps >= HUGE_EPS or variance > 0)


def eps_encoded_spec(live: NormSpec) -> NormSpec:
    """The FIXED_SCALE spec with ``fixed_scale = sqrt(eps)`` of a live norm with a huge eps."""
    eps = live.eps or 0.0
    return NormSpec(
        NormKind.FIXED_SCALE,
        live.width,
        eps=eps,
        centred=live.centred,
        unit_offset=live.unit_offset,
        gain=live.gain,
        bias=live.bias,
        fixed_scale=eps**0.5,
        eps_encoded=True,
        compute_dtype=live.compute_dtype,
        factor=live.factor,
    )


def _is_known(spec: NormSpec) -> bool:
    return spec.kind is not NormKind.OPAQUE
