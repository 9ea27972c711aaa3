"""LayerNorm: each token centred and divided by its standard deviation."""

from __future__ import annotations

from torch import nn

from normlens.norms.kind import NormKind
from normlens.norms.kinds.row import Coupling, KindRow
from normlens.norms.maps import RootMeanSquare
from normlens.norms.spec import NormSpec
from normlens.norms.token import TokenNorm
from normlens.norms.torch_norms import torch_norm

MAP = RootMeanSquare()


def make(spec: NormSpec) -> nn.Module:
    """Torch's module where torch has the form, else our own."""
    return torch_norm(spec) or TokenNorm(spec, MAP)


ROW = KindRow(
    kind=NormKind.LAYER_NORM,
    title="LayerNorm",
    formula="y = (x - mean(x)) / s * gamma + beta, s = sqrt(mean((x - mean(x))^2) + eps)",
    source="Ba et al. 2016, Layer Normalization, 1607.06450, eq. 3-4",
    eps="under the root, added to the biased variance (torch)",
    couples=Coupling.TOKEN,
    annihilates="the all-ones direction, exactly; the centred input, up to eps / s^2",
    norm_map=MAP,
    make=make,
)
