"""ScaleNorm: L2 normalization with one learned length for all elements."""

from __future__ import annotations

import torch
from torch import Tensor

from normlens.norms.kind import NormKind
from normlens.norms.kinds.row import Coupling, KindRow
from normlens.norms.maps import Length
from normlens.norms.spec import NormSpec
from normlens.norms.token import TokenNorm

MAP = Length()


class ScaleNorm(TokenNorm):
    """``y = weight * x / max(||x||, eps) + bias`` with a scalar ``weight``.

    The weight starts at ``sqrt(width)``, the length of a token of unit variance.

    Args:
        spec: of kind SCALE_NORM.
    """

    def __init__(self, spec: NormSpec) -> None:
        super().__init__(spec, MAP)

    def initial_gain(self) -> Tensor:
        """``sqrt(width)``."""
        return torch.tensor(self.width**0.5)


ROW = KindRow(
    kind=NormKind.SCALE_NORM,
    title="ScaleNorm",
    formula="y = g x / s, s = max(||x||, eps), one g for all elements",
    source=(
        "Nguyen & Salazar 2019, Transformers without Tears, 1910.05895, section on ScaleNorm; "
        "g starts at sqrt(d)"
    ),
    eps="a clamp from below on the length (the authors' code; the paper has none)",
    couples=Coupling.TOKEN,
    annihilates="the input itself, exactly, where its length is above eps",
    norm_map=MAP,
    make=ScaleNorm,
)
