"""Elementwise layer norm (ELN, DyISRU): the exact elementwise counterpart of RMSNorm.

    y = sqrt(d) * x / sqrt(b + x**2) * gamma + beta
      = alpha * x / sqrt(1 + (alpha * x)**2 / d) * gamma + beta,   alpha = sqrt(d / b)

``b`` stands for the sum of squares of the other elements, which RMSNorm measures and this
map holds constant; d is the width and the output before the gain is bounded by ``sqrt(d)``.
The parameter is ``alpha``, the slope at 0, as for DyT: ``b`` is positive whatever it is.

Source: Stollenwerk 2025 (2503.21708), DyISRU; there ``b`` is called beta and d is C.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normlens.norms.kind import NormKind
from normlens.norms.kinds.row import Coupling, KindRow
from normlens.norms.maps import Elementwise, Wide, slope_at_zero
from normlens.norms.module import NormModule, stored_number
from normlens.norms.spec import NormSpec


class InverseSquareRoot(Elementwise):
    """``u / sqrt(1 + u**2 / width)`` with ``u = alpha * x``."""

    def xhat(self, spec: NormSpec, centred: Wide) -> Wide:
        """The squashed elements."""
        return squashed(slope_at_zero(spec) * centred, spec.width)

    def derivative(self, spec: NormSpec, centred: Wide) -> Wide:
        """``alpha * (1 + u**2 / width) ** (-3/2)``."""
        alpha = slope_at_zero(spec)
        return alpha * (1 + (alpha * centred).square() / spec.width) ** -1.5


MAP = InverseSquareRoot()


def squashed(u: Tensor, width: int) -> Tensor:
    """``u / sqrt(1 + u**2 / width)``."""
    return u / (1 + u.square() / width).sqrt()


class ELN(NormModule):
    """``y = u / sqrt(1 + u**2 / width) * weight + bias`` with ``u = alpha * x``, elementwise.

    Args:
        width: size of the last axis.
        alpha: initial slope at 0, per unit of ``x``; one trainable scalar. The paper's
            constant is ``width / alpha**2``.
        gain: whether there is a gain.
        bias: whether there is an additive bias.
    """

    def __init__(
        self, width: int, alpha: float = 0.5, *, gain: bool = True, bias: bool = True
    ) -> None:
        super().__init__(NormSpec(NormKind.ELN, width, gain=gain, bias=bias, alpha=float(alpha)))
        self.alpha = nn.Parameter(torch.tensor(float(alpha)))

    @property
    def spec(self) -> NormSpec:
        """With the slope as it is now."""
        return replace(
            self.built_spec, alpha=stored_number(self.alpha, self.built_spec.alpha or 0.0)
        )

    def normalise(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """The squashed elements."""
        return squashed(self.alpha.to(x.dtype) * x, self.width)


def make(spec: NormSpec) -> nn.Module:
    """The module."""
    return ELN(spec.width, slope_at_zero(spec), gain=spec.gain, bias=spec.bias)


ROW = KindRow(
    kind=NormKind.ELN,
    title="Elementwise layer norm (ELN, DyISRU)",
    formula="y = sqrt(d) x / sqrt(b + x^2) * gamma + beta, b = d / alpha^2, one learned alpha",
    source=(
        "Stollenwerk 2025, The Mathematical Relationship Between Layer Normalization and "
        "Dynamic Activation Functions, 2503.21708, definition of DyISRU"
    ),
    eps="none",
    couples=Coupling.NOTHING,
    annihilates="none; elements far in the tail hardly move",
    remark="Bounded by sqrt(d) before the gain. The paper learns b; here its root is learned.",
    norm_map=MAP,
    make=make,
)
