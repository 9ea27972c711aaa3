"""RMSNorm: each token divided by its root mean square."""

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
    kind=NormKind.RMS_NORM,
    title="RMSNorm",
    formula="y = x / s * gamma, s = sqrt(mean(x^2) + eps); stored as gamma - 1 with a unit offset",
    source="Zhang & Sennrich 2019, Root Mean Square Layer Normalization, 1910.07467, eq. 4",
    eps="under the root, added to the mean square (torch, Llama, Gemma)",
    couples=Coupling.TOKEN,
    annihilates="the input itself, up to eps / s^2",
    norm_map=MAP,
    make=make,
)
