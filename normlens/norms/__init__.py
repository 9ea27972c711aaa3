"""What a norm computes: kinds, specs, the float64 reference, modules torch lacks."""

from normlens.norms.batch import BatchNormModule
from normlens.norms.factory import ScaledNorm, make_norm
from normlens.norms.kind import NormKind
from normlens.norms.kinds import KINDS, Coupling, KindRow
from normlens.norms.kinds.dyt import DyT
from normlens.norms.kinds.eln import ELN
from normlens.norms.kinds.fixed_scale import FixedScale
from normlens.norms.module import NormModule
from normlens.norms.reference import (
    NormParts,
    annihilated,
    apply_norm,
    centre,
    jacobian_vector_product,
    scale_from_mean_square,
    scale_of,
)
from normlens.norms.spec import NormSpec
from normlens.norms.torch_norms import torch_spec

__all__ = [
    "ELN",
    "KINDS",
    "BatchNormModule",
    "Coupling",
    "DyT",
    "FixedScale",
    "KindRow",
    "NormKind",
    "NormModule",
    "NormParts",
    "NormSpec",
    "ScaledNorm",
    "annihilated",
    "apply_norm",
    "centre",
    "jacobian_vector_product",
    "make_norm",
    "scale_from_mean_square",
    "scale_of",
    "torch_spec",
]
