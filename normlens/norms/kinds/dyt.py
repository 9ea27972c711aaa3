"""Dynamic tanh: an elementwise replacement of a norm.

    y = tanh(alpha * x) * gamma + beta

No statistic of the token enters, so there is no scale: large elements are squashed by
themselves, whatever the others are.

Source: "Transformers without Normalization" (2503.10622), eq. 1 and algorithm 1.
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


class Tanh(Elementwise):
    """``tanh(alpha * x)``."""

    def xhat(self, spec: NormSpec, centred: Wide) -> Wide:
        """The squashed elements."""
        return (slope_at_zero(spec) * centred).tanh()

    def derivative(self, spec: NormSpec, centred: Wide) -> Wide:
        """``alpha * (1 - xhat**2)``."""
        return slope_at_zero(spec) * (1 - self.xhat(spec, centred).square())


MAP = Tanh()


class DyT(NormModule):
    """``y = tanh(alpha * x) * weight + bias``, elementwise.

    Args:
        width: size of the last axis.
        alpha: initial slope at 0, per unit of ``x``; one trainable scalar.
        gain: whether there is a gain.
        bias: whether there is an additive bias.
    """

    def __init__(
        self, width: int, alpha: float = 0.5, *, gain: bool = True, bias: bool = True
    ) -> None:
        super().__init__(NormSpec(NormKind.DYT, width, gain=gain, bias=bias, alpha=float(alpha)))
        self.alpha = nn.Parameter(torch.tensor(float(alpha)))

    @property
    def spec(self) -> NormSpec:
        """With the slope as it is now."""
        alpha = stored_number(self.alpha, self.built_spec.alpha or 0.0)
        return replace(self.built_spec, gain=self.weight is not None, alpha=alpha)

    def normalise(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """``tanh(alpha * x)``."""
        return (self.alpha.to(x.dtype) * x).tanh()


def make(spec: NormSpec) -> nn.Module:
    """The module."""
    return DyT(spec.width, slope_at_zero(spec), gain=spec.gain, bias=spec.bias)


ROW = KindRow(
    kind=NormKind.DYT,
    title="Dynamic tanh (DyT)",
    formula="y = tanh(alpha x) * gamma + beta, one learned alpha",
    source="Zhu et al. 2025, Transformers without Normalization, 2503.10622, eq. 1, algorithm 1",
    eps="none",
    couples=Coupling.NOTHING,
    annihilates="none; elements far in the tail hardly move",
    norm_map=MAP,
    make=make,
)
