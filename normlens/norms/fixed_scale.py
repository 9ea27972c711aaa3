"""A norm whose scale is a constant: what the public "LN-free" models are.

    y = (x - mean(x)) / scale * gamma + beta

Centring, gain and bias remain; only the division by the token's own standard
deviation is gone, which makes the map affine in ``x``.

Source: "Transformers Don't Need LayerNorm at Inference Time" (2507.02559), the
``FakeLN`` of the removal recipe.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class FixedScale(nn.Module):
    """``y = (x - mean(x)) / scale * weight + bias`` over the last axis.

    Args:
        width: size of the last axis.
        scale: the constant denominator, in the units of ``x``; positive.
        centred: whether the mean over the last axis is subtracted first.
        bias: whether an additive bias is kept.
    """

    scale: Tensor

    def __init__(
        self, width: int, scale: float = 1.0, *, centred: bool = True, bias: bool = True
    ) -> None:
        super().__init__()
        self.width = width
        self.centred = centred
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.register_buffer("scale", torch.tensor(float(scale)))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Apply the map in float32 or wider; the result has the dtype of ``x``."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        centred = wide - wide.mean(-1, keepdim=True) if self.centred else wide
        y = centred * (self.weight / self.scale).to(wide.dtype)
        return (y if self.bias is None else y + self.bias.to(wide.dtype)).to(x.dtype)

    def extra_repr(self) -> str:
        """Width and scale, for ``print(model)``."""
        return f"{self.width}, scale={self.scale.item():.4g}, centred={self.centred}"
