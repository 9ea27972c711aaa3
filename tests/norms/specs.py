"""One spec of every kind and form, with odd constants."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from normlens.norms import NormKind, NormSpec, apply_norm

WIDTH = 7
EPS = 3e-4

LAYER_NORM = NormSpec(NormKind.LAYER_NORM, WIDTH, eps=EPS, centred=True, gain=True, bias=True)
RMS_NORM = NormSpec(NormKind.RMS_NORM, WIDTH, eps=EPS, gain=True)
CRMS_NORM = NormSpec(NormKind.CRMS_NORM, WIDTH, eps=EPS, gain=True, bias=True)
SCALE_NORM = NormSpec(NormKind.SCALE_NORM, WIDTH, eps=EPS, gain=True)
SIMPLE = NormSpec(NormKind.SIMPLE_RMS_NORM, WIDTH, eps=EPS)
L1_NORM = NormSpec(NormKind.L1_NORM, WIDTH, eps=EPS, centred=True, gain=True, bias=True)
L2_NORM = NormSpec(NormKind.L2_NORM, WIDTH, eps=EPS)
BATCH_NORM = NormSpec(NormKind.BATCH_NORM, WIDTH, eps=EPS, gain=True, bias=True)
POWER_NORM = NormSpec(NormKind.POWER_NORM, WIDTH, eps=EPS, gain=True, bias=True)
UNIFIED_NORM = NormSpec(NormKind.UNIFIED_NORM, WIDTH, eps=EPS, gain=True, bias=True)
DYT = NormSpec(NormKind.DYT, WIDTH, gain=True, bias=True, alpha=0.6875)
ELN = NormSpec(NormKind.ELN, WIDTH, gain=True, bias=True, alpha=1.375)
FIXED = NormSpec(NormKind.FIXED_SCALE, WIDTH, centred=True, gain=True, bias=True, fixed_scale=1.75)
IDENTITY = NormSpec(NormKind.IDENTITY, WIDTH)

VARIANTS = {
    "layer_norm": LAYER_NORM,
    "layer_norm unit offset": dataclasses.replace(LAYER_NORM, unit_offset=True),
    "layer_norm bias alone": dataclasses.replace(LAYER_NORM, gain=False),
    "layer_norm scaled": dataclasses.replace(LAYER_NORM, factor=0.625),
    "rms_norm": RMS_NORM,
    "rms_norm unit offset": dataclasses.replace(RMS_NORM, unit_offset=True),
    "rms_norm bias": dataclasses.replace(RMS_NORM, bias=True),
    "crms_norm": CRMS_NORM,
    "scale_norm": SCALE_NORM,
    "scale_norm scaled": dataclasses.replace(SCALE_NORM, factor=0.625, bias=True),
    "simple_rms_norm": SIMPLE,
    "l1_norm": L1_NORM,
    "l1_norm uncentred": dataclasses.replace(L1_NORM, centred=False),
    "l2_norm": L2_NORM,
    "l2_norm gain": dataclasses.replace(L2_NORM, gain=True),
    "batch_norm": BATCH_NORM,
    "batch_norm bare": dataclasses.replace(BATCH_NORM, gain=False, bias=False),
    "power_norm": POWER_NORM,
    "unified_norm": UNIFIED_NORM,
    "dyt": DYT,
    "dyt without gain": dataclasses.replace(DYT, gain=False),
    "eln": ELN,
    "fixed_scale": FIXED,
    "fixed_scale uncentred": dataclasses.replace(FIXED, centred=False, gain=False),
    "fixed_scale by position": dataclasses.replace(
        FIXED, fixed_scale=None, position_scales=(3.5, 0.75, 1.25)
    ),
    "identity": IDENTITY,
}


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter of a norm and every running statistic redrawn; in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not name.endswith("alpha"):
                parameter.copy_(1.3 + 0.5 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in module.named_buffers():
            if name.startswith("running"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return module.eval()


@dataclasses.dataclass(frozen=True)
class Output:
    """The reference of a spec as a function of its input."""

    spec: NormSpec
    gamma: Tensor | None
    beta: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return apply_norm(self.spec, x, self.gamma, self.beta).y
