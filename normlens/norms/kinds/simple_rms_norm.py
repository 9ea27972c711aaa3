"""SimpleRMSNorm: RMSNorm without a gain."""

from __future__ import annotations

from functools import partial

from normlens.norms.kind import NormKind
from normlens.norms.kinds.row import Coupling, KindRow
from normlens.norms.maps import RootMeanSquare
from normlens.norms.token import TokenNorm

MAP = RootMeanSquare()


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
    make=partial(TokenNorm, norm_map=MAP),
)
