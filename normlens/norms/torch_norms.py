"""torch's own LayerNorm and RMSNorm: from a spec and back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normlens.norms.kind import NormKind
from normlens.norms.spec import NormSpec


def torch_norm(spec: NormSpec) -> nn.Module | None:
    """Torch's module of a LayerNorm or RMSNorm spec; None where torch has no such form."""
    if spec.unit_offset or spec.eps is None:
        return None
    if spec.kind is NormKind.LAYER_NORM and (spec.gain or not spec.bias):
        return nn.LayerNorm(spec.width, spec.eps, elementwise_affine=spec.gain, bias=spec.bias)
    if spec.kind is NormKind.RMS_NORM and not spec.bias:
        return nn.RMSNorm(spec.width, spec.eps, elementwise_affine=spec.gain)
    return None


def torch_spec(module: nn.LayerNorm | nn.RMSNorm, width: int) -> NormSpec:
    """The spec of torch's module; OPAQUE where it normalises other than the last axis."""
    if tuple(module.normalized_shape) != (width,):
        return NormSpec(NormKind.OPAQUE, width)
    weight = _parameter(module, "weight")
    if isinstance(module, nn.RMSNorm):
        dtype = torch.get_default_dtype() if weight is None else weight.dtype
        # Without an eps it uses the machine epsilon of its input's dtype.
        eps = torch.finfo(dtype).eps if module.eps is None else module.eps
        return NormSpec(NormKind.RMS_NORM, width, eps=eps, gain=weight is not None)
    return NormSpec(
        NormKind.LAYER_NORM,
        width,
        eps=module.eps,
        centred=True,
        gain=weight is not None,
        bias=_parameter(module, "bias") is not None,
    )


def _parameter(module: nn.Module, name: str) -> Tensor | None:
    return dict(module.named_parameters(recurse=False)).get(name)
