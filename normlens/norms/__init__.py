"""What a norm computes: kinds, specs, the float64 reference, modules torch lacks."""

from normlens.norms.dyt import DyT
from normlens.norms.fixed_scale import FixedScale
from normlens.norms.reference import (
    NormParts,
    apply_norm,
    centre,
    jacobian_vector_product,
    scale_of,
)
from normlens.norms.spec import NormKind, NormSpec

__all__ = [
    "DyT",
    "FixedScale",
    "NormKind",
    "NormParts",
    "NormSpec",
    "apply_norm",
    "centre",
    "jacobian_vector_product",
    "scale_of",
]
