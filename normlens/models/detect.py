"""From a norm module to its spec: kind and constants, read from the module itself.

Class membership decides, never a config; :mod:`normlens.models.verify` then recomputes
the module's output from the spec, so a subclass that computes something else is found.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from normlens.norms import FixedScale, NormKind, NormSpec

HUGE_EPS = 1e6
"""From here on an eps is no guard against division by zero but a stored scale."""

DWARFING_RATIO = 1e6
"""From this ratio of eps to the variance on, the scale is constant to 5e-7 relative."""

LINEAR_RATIO = 1e4
"""Below this ratio even a norm with a huge eps is not linear to 5e-5 and counts as live."""


@dataclass(frozen=True)
class RmsClass:
    """How a Hugging Face RMSNorm class stores and computes.

    Attributes:
        eps_attribute: attribute that holds eps.
        unit_offset: whether the stored weight is ``gamma - 1``.
        compute_dtype: as in :class:`~normlens.norms.NormSpec`.
    """

    eps_attribute: str
    unit_offset: bool
    compute_dtype: str


RMS_CLASSES = {
    "LlamaRMSNorm": RmsClass("variance_epsilon", unit_offset=False, compute_dtype="float32"),
}
"""Known RMSNorm classes by class name."""


def is_norm(module: nn.Module) -> bool:
    """Whether the module is of a norm class that :func:`live_spec` knows."""
    known = (nn.LayerNorm, nn.RMSNorm, FixedScale)
    return isinstance(module, known) or type(module).__name__ in RMS_CLASSES


def live_spec(module: nn.Module, width: int) -> NormSpec:
    """The spec a module has by its class, whatever the size of its eps.

    A module of an unknown class, or one that does not normalise exactly the last axis of
    size ``width``, is OPAQUE.
    """
    opaque = NormSpec(NormKind.OPAQUE, width)
    match module:
        case nn.Identity():
            return NormSpec(NormKind.IDENTITY, width)
        case FixedScale():
            return NormSpec(
                NormKind.FIXED_SCALE,
                module.width,
                centred=module.centred,
                gain=True,
                bias=module.bias is not None,
                fixed_scale=module.scale.item(),
            )
        case nn.LayerNorm():
            if tuple(module.normalized_shape) != (width,):
                return opaque
            return NormSpec(
                NormKind.LAYER_NORM,
                width,
                eps=module.eps,
                centred=True,
                gain=module.weight is not None,
                bias=module.bias is not None,
            )
        case nn.RMSNorm():
            if tuple(module.normalized_shape) != (width,):
                return opaque
            return _rms(module, width, module.eps, RmsClass("eps", False, "input"))
    known = RMS_CLASSES.get(type(module).__name__)
    if known is None:
        return opaque
    return _rms(module, width, getattr(module, known.eps_attribute), known)


def candidate_specs(module: nn.Module, width: int, variance: float) -> tuple[NormSpec, ...]:
    """Specs to verify, the preferred one first.

    A LayerNorm or RMSNorm whose eps dwarfs ``variance`` is a fixed-scale norm stored as a
    live one; the live spec stays second.

    Args:
        module: a norm module.
        width: size of the axis it normalises.
        variance: the largest ``mean(centred**2)`` over tokens that it met on a sample.
    """
    live = live_spec(module, width)
    if live.kind.has_live_scale and eps_dwarfs(live.eps, variance):
        return eps_encoded_spec(live), live
    return (live,)


def has_huge_eps(spec: NormSpec) -> bool:
    """Whether an eps was put where a scale belongs, judged without any input."""
    return spec.kind.has_live_scale and (spec.eps or 0.0) >= HUGE_EPS


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
    )


def _rms(module: nn.Module, width: int, eps: float | None, known: RmsClass) -> NormSpec:
    weight = module.weight
    dtype = weight.dtype if isinstance(weight, torch.Tensor) else torch.get_default_dtype()
    return NormSpec(
        NormKind.RMS_NORM,
        width,
        # torch.nn.RMSNorm without an eps uses the machine epsilon of its input's dtype.
        eps=torch.finfo(dtype).eps if eps is None else eps,
        unit_offset=known.unit_offset,
        gain=weight is not None,
        compute_dtype=known.compute_dtype,
    )
