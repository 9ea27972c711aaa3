"""How a branch's output enters the stream, and learned factors."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Add(nn.Module):
    """``alpha x + y`` with a constant ``alpha``: 1, or DeepNorm's (2203.00555, figure 2)."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(
        self, x: Float[Tensor, "*batch width"], y: Float[Tensor, "*batch width"]
    ) -> Float[Tensor, "*batch width"]:
        """The stream with the branch added."""
        return x + y if self.alpha == 1.0 else self.alpha * x + y

    def extra_repr(self) -> str:
        """The factor, for ``print(model)``."""
        return f"alpha={self.alpha:.4g}"


class Interpolate(nn.Module):
    """``x + rate (y - x)`` with one learned rate per element.

    ``rate = |weight| * initial / stored`` where ``weight`` starts at ``stored``, by default
    ``1 / sqrt(width)``, so that the optimizer's step is that of a parameter of the size of a
    weight.

    Source: nGPT, 2410.01131, eq. 10-11 and section 2.5.

    Args:
        width: size of the last axis.
        initial: rate at the start.
    """

    def __init__(self, width: int, initial: float) -> None:
        super().__init__()
        self.scale = LearnedScale(width, initial)

    def forward(
        self, x: Float[Tensor, "*batch width"], y: Float[Tensor, "*batch width"]
    ) -> Float[Tensor, "*batch width"]:
        """The stream moved towards the branch."""
        return x + self.scale.value().abs() * (y - x)


class LearnedScale(nn.Module):
    """Multiplies by a learned vector, or by one learned number.

    ``value = weight * initial / stored``; ``weight`` starts at ``stored``. The quotient sets the
    learning rate of ``value`` against that of other parameters (2410.01131, section 2.5).

    Args:
        width: size of the vector; None for one number.
        initial: value at the start.
        stored: what the parameter itself starts at; by default ``1 / sqrt(width)``, and the
            value itself for one number.
    """

    def __init__(self, width: int | None, initial: float, stored: float | None = None) -> None:
        super().__init__()
        by_default = initial if width is None else float(width) ** -0.5
        start = by_default if stored is None else stored
        shape = () if width is None else (width,)
        self.weight = nn.Parameter(torch.full(shape, start))
        self.factor = initial / start
        self.stored = start

    def value(self) -> Tensor:
        """What is multiplied by."""
        return self.weight * self.factor

    def forward(self, x: Tensor) -> Tensor:
        """``value * x``."""
        return self.value() * x
