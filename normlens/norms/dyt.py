"""Dynamic tanh: an elementwise replacement of a norm.

    y = tanh(alpha * x) * gamma + beta

No statistic of the token enters, so there is no scale: large elements are squashed by
themselves, whatever the others are.

Source: "Transformers without Normalization" (2503.10622), eq. 1 and algorithm 1.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class DyT(nn.Module):
    """``y = tanh(alpha * x) * weight + bias``, elementwise.

    Args:
        width: size of the last axis.
        alpha: initial slope at 0, per unit of ``x``; one trainable scalar.
        bias: whether there is an additive bias.
    """

    def __init__(self, width: int, alpha: float = 0.5, *, bias: bool = True) -> None:
        super().__init__()
        self.width = width
        self.alpha = nn.Parameter(torch.tensor(float(alpha)))
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Apply the map in float32 or wider; the result has the dtype of ``x``."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        y = (self.alpha.to(wide.dtype) * wide).tanh() * self.weight.to(wide.dtype)
        return (y if self.bias is None else y + self.bias.to(wide.dtype)).to(x.dtype)

    def extra_repr(self) -> str:
        """Width and slope, for ``print(model)``."""
        return f"{self.width}, alpha={self.alpha.item():.4g}"
