"""Gain and bias of a site, in float64, with every storage convention undone."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normlens.models.lens import Lens, NormSite
from normlens.models.norm_classes import norm_parts
from normlens.norms import NormSpec

Gain = Float[Tensor, "*head width"] | None


def gain_and_bias(lens: Lens, site: NormSite) -> tuple[Gain, Gain]:
    """``(gamma, beta)`` of a site: float64, None where the norm has none.

    ``[width]``, or ``[head width]`` where every head has its own (Cohere, StableLM).
    ``gamma`` is effective: ``weight + 1`` where the weight is stored as an offset. For an
    eps-encoded norm it is the stored weight, which carries ``sqrt(eps)`` over the true
    scale; with ``spec.fixed_scale = sqrt(eps)`` the product is right.
    """
    return module_gain_and_bias(lens.module(site), site.spec)


def module_gain_and_bias(module: nn.Module, spec: NormSpec) -> tuple[Gain, Gain]:
    """:func:`gain_and_bias` of a module that is not in a lens yet."""
    gamma = _stored(module, "weight") if spec.gain else None
    beta = _stored(module, "bias") if spec.bias else None
    return (gamma + 1 if gamma is not None and spec.unit_offset else gamma), beta


def _stored(module: nn.Module, name: str) -> Tensor:
    parts = norm_parts(module)
    values = [part.get_parameter(name).detach().double() for part in parts]
    return torch.stack(values) if len(values) > 1 else values[0]
