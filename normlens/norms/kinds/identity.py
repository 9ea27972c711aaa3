"""No norm at all."""

from __future__ import annotations

from torch import nn

from normlens.norms.kind import NormKind
from normlens.norms.kinds.row import Coupling, KindRow
from normlens.norms.maps import Constant
from normlens.norms.spec import NormSpec

MAP = Constant()


def make(spec: NormSpec) -> nn.Module:
    """The module."""
    return nn.Identity()


ROW = KindRow(
    kind=NormKind.IDENTITY,
    title="Identity (no norm)",
    formula="y = x",
    source="Jha & Reagen 2024, ReLU's Revival, 2410.09637 (norm-free blocks)",
    eps="none",
    couples=Coupling.NOTHING,
    annihilates="none",
    norm_map=MAP,
    make=make,
)
