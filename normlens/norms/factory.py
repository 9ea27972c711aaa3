"""From a spec to the module that computes it, and a constant factor on a module's output."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor, nn

from normlens.norms.kinds import KINDS
from normlens.norms.module import NormModule
from normlens.norms.spec import NormSpec
from normlens.norms.torch_norms import torch_spec


def make_norm(spec: NormSpec) -> nn.Module:
    """A new module with this spec: gain 1 (ScaleNorm: ``sqrt(width)``), bias 0.

    torch's own LayerNorm, RMSNorm and Identity where they have the form. Detection reads
    the same spec back, up to the rounding of constants that are stored as tensors (alpha and
    fixed scales) and up to ``compute_dtype``: every module computes in float32 or wider.

    Raises:
        UsageError: a constant of the spec is out of range, missing, or not one of its kind,
            or the kind is OPAQUE.
    """
    spec.check()
    norm = KINDS[spec.kind].make(spec)
    return norm if spec.factor == 1.0 else ScaledNorm(norm, spec.factor)


class ScaledNorm(nn.Module):
    """``factor * norm(x)``: LayerNorm Scaling's ``1 / sqrt(l)`` at layer l from 1.

    Source: Sun et al. 2025 (2502.05795), section 4.

    Args:
        norm: a norm module of this package or of torch.
        factor: a constant, not trained.
    """

    def __init__(self, norm: nn.Module, factor: float) -> None:
        super().__init__()
        self.norm = norm
        self.factor = factor
        self.width = _inner_spec(norm).width

    @property
    def spec(self) -> NormSpec:
        """That of the norm, with the factor."""
        inner = _inner_spec(self.norm)
        return replace(inner, factor=self.factor * inner.factor)

    def get_parameter(self, target: str) -> nn.Parameter:
        """A parameter of the norm, by the name that it has there or here."""
        return self.norm.get_parameter(target.removeprefix("norm."))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """The scaled output, in the dtype of ``x``."""
        return self.norm(x) * self.factor

    def extra_repr(self) -> str:
        """The factor, for ``print(model)``."""
        return f"factor={self.factor:.4g}"


def _inner_spec(norm: nn.Module) -> NormSpec:
    match norm:
        case NormModule():
            return norm.spec
        case nn.LayerNorm() | nn.RMSNorm():
            return torch_spec(norm, norm.normalized_shape[-1])
        case _:
            raise ValueError(
                f"a factor cannot be put on a {type(norm).__name__}, whose kind is not known here"
            )
