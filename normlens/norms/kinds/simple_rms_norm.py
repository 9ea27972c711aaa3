"""SimpleRMSNorm: RMSNorm without a gain."""

from __future__ import annotations

from torch import nn

from normlens.norms.kind import NormKind
from normlens.norms.kinds.row import Coupling, KindRow
from normlens.norms.maps import RootMeanSquare
from normlens.norms.spec import NormSpec
from normlens.norms.token import TokenNorm

MAP = RootMeanSquare()


def make(spec: NormSpec) -> nn.Module:
    """The module."""
    return TokenNorm(spec, MAP)


ROW = KindRow(
    kind=NormKind.SIMPLE_RMS_NORM,
    title="SimpleRMSNorm",
    formula="y = x / s, s = sqrt(mean(x^2) + eps)",
    source="Qin et al. 2023, TransNormerLLM, 2307.14995, section on SimpleRMSNorm",
    eps="under the root, added to the mean square (the authors' code; the paper has none)",
    couples=Coupling.TOKEN,
    annihilates="the input itself, up to eps / s^2",
    remark="No parameter at all: the gain of the paper's Transformer is that of the next linear.",
    norm_map=MAP,
    make=make,
)
