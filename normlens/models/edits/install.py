"""Putting norm modules into an edited copy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from normlens.errors import NotApplicable
from normlens.models.lens import Lens, NormSite
from normlens.models.norm_classes import norm_parts
from normlens.models.parameters import gain_and_bias
from normlens.norms import NormSpec, make_norm


def install_norm(
    model: PreTrainedModel, path: str, spec: NormSpec, gamma: Tensor | None, beta: Tensor | None
) -> None:
    """Build the module of ``spec`` and put it at ``path``.

    Args:
        model: a structural copy.
        path: of the norm it replaces.
        spec: of the new one.
        gamma: effective gain, where the spec has one.
        beta: bias, where the spec has one.
    """
    old = model.get_submodule(path)
    reference = next(old.parameters(), next(model.parameters()))
    new = make_norm(spec).to(reference.device, reference.dtype)
    for name, value in (("weight", gamma), ("bias", beta)):
        if value is not None:
            new.get_parameter(name).data.copy_(value)
    model.set_submodule(path, new.requires_grad_(False).eval())


def clear_affine(model: PreTrainedModel, site: NormSite) -> None:
    """Make the norm's gain 1 and its bias 0, keeping its module."""
    for part in norm_parts(model.get_submodule(site.path)):
        weight, bias = _own(part, "weight"), _own(part, "bias")
        if weight is not None:
            one = torch.zeros_like(weight) if site.spec.unit_offset else torch.ones_like(weight)
            part.register_parameter("weight", nn.Parameter(one, requires_grad=False))
        if bias is not None:
            part.register_parameter("bias", nn.Parameter(torch.zeros_like(bias), False))


def one_gain_and_bias(lens: Lens, site: NormSite) -> tuple[Tensor | None, Tensor | None]:
    """Gain and bias of a norm whose heads share them.

    Raises:
        NotApplicable: every head has its own.
    """
    gamma, beta = gain_and_bias(lens, site)
    if any(p is not None and p.ndim > 1 for p in (gamma, beta)):
        raise NotApplicable(
            f"every head of norm {site.label} of {lens.identity.name} has a gain of its own, "
            "which no other norm module holds; leave that norm out"
        )
    return gamma, beta


def one_slope_and_bias(lens: Lens, site: NormSite) -> tuple[Tensor, Tensor | None]:
    """As :func:`one_gain_and_bias`, with gain 1 for a norm that has none.

    Raises:
        NotApplicable: every head has its own.
    """
    gamma, beta = one_gain_and_bias(lens, site)
    return (torch.ones(site.spec.width).double() if gamma is None else gamma), beta


def has_affine(lens: Lens, site: NormSite) -> bool:
    """Whether a gain differs from 1 or a bias from 0."""
    gamma, beta = gain_and_bias(lens, site)
    return bool((gamma is not None and (gamma != 1).any()) or (beta is not None and beta.any()))


def _own(module: nn.Module, name: str) -> nn.Parameter | None:
    return dict(module.named_parameters(recurse=False)).get(name)
