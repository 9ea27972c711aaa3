"""A row of facts for every kind of norm that can be computed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from normlens.norms.kind import NormKind
from normlens.norms.kinds import (
    batch_norm,
    crms_norm,
    dyt,
    eln,
    fixed_scale,
    identity,
    l1_norm,
    l2_norm,
    layer_norm,
    power_norm,
    rms_norm,
    scale_norm,
    simple_rms_norm,
    unified_norm,
)
from normlens.norms.kinds.row import Coupling, KindRow

__all__ = ["KINDS", "Coupling", "KindRow"]

KINDS: Mapping[NormKind, KindRow] = MappingProxyType(
    {
        row.kind: row
        for row in (
            layer_norm.ROW,
            rms_norm.ROW,
            crms_norm.ROW,
            scale_norm.ROW,
            simple_rms_norm.ROW,
            l1_norm.ROW,
            l2_norm.ROW,
            batch_norm.ROW,
            power_norm.ROW,
            unified_norm.ROW,
            dyt.ROW,
            eln.ROW,
            fixed_scale.ROW,
            identity.ROW,
        )
    }
)
"""By kind, every one but OPAQUE, in the order of :class:`NormKind`."""
