"""Gain and bias of a site, in float64, with every storage convention undone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normlens.models.lens import Lens, NormSite
from normlens.models.norm_classes import norm_parts
from normlens.norms import BatchNormModule, NormSpec

Gain = Float[Tensor, "*head width"] | None


def gain_and_bias(lens: Lens, site: NormSite) -> tuple[Gain, Gain]:
    """``(gamma, beta)`` of a site: float64, None where the norm has none.

    ``[width]``, or ``[head width]`` where every head has its own (Cohere, StableLM).
    ``gamma`` is effective: ``weight + 1`` where the weight is stored as an offset. For an
    eps-encoded norm it is the stored weight, which carries ``sqrt(eps)`` over the true
    scale; with ``spec.fixed_scale = sqrt(eps)`` the product is right. For a batch kind both
    are those of eval mode, running statistics folded in, and exist whatever the spec stores.
    The one gain of ScaleNorm is repeated for every element. ``spec.factor`` is not in them.
    """
    return module_gain_and_bias(lens.module(site), site.spec)


def module_gain_and_bias(module: nn.Module, spec: NormSpec) -> tuple[Gain, Gain]:
    """:func:`gain_and_bias` of a module that is not in a lens yet."""
    parts = norm_parts(module)
    if isinstance(parts[0], BatchNormModule):
        return parts[0].folded()
    gamma = _stored(parts, "weight") if spec.gain else None
    if gamma is not None and gamma.ndim == 0:
        gamma = gamma.repeat(spec.width)
    beta = _stored(parts, "bias") if spec.bias else None
    return (gamma + 1 if gamma is not None and spec.unit_offset else gamma), beta


def _stored(parts: Sequence[nn.Module], name: str) -> Tensor:
    values = [part.get_parameter(name).detach().double() for part in parts]
    return torch.stack(values) if len(values) > 1 else values[0]
