"""A norm whose scale is a constant: what the public "LN-free" models are.

    y = (x - mean(x)) / scale * gamma + beta

Centring, gain and bias remain; only the division by the token's own standard
deviation is gone, which makes the map affine in ``x``.

Source: "Transformers Don't Need LayerNorm at Inference Time" (2507.02559), the
``FakeLN`` of the removal recipe.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normlens.norms.kind import NormKind
from normlens.norms.kinds.row import Coupling, KindRow
from normlens.norms.maps import Constant, RootMeanSquare, Wide
from normlens.norms.module import NormModule, stored_number
from normlens.norms.spec import NormSpec
from normlens.norms.token import TokenNorm
from normlens.norms.torch_norms import torch_norm


class FixedConstant(Constant):
    """The constant of the spec, or that of each position."""

    def from_mean_square(self, spec: NormSpec, mean_square: Tensor) -> Tensor:
        """The constant, of the shape of ``mean_square``.

        Raises:
            ValueError: each position has its own.
        """
        if spec.position_scales is not None:
            raise ValueError("this fixed scale depends on the position, so a mean is not enough")
        return torch.full_like(mean_square, spec.fixed_scale or 1.0)

    def scale(self, spec: NormSpec, centred: Wide) -> Tensor:
        """The constant of each token; positions are the axis before the last."""
        column = centred[..., :1]
        if spec.position_scales is None:
            return torch.full_like(column, spec.fixed_scale or 1.0)
        constants = torch.tensor(spec.position_scales, dtype=column.dtype, device=column.device)
        return by_position(constants, centred).expand_as(column)


MAP = FixedConstant()


def by_position(
    constants: Float[Tensor, " known"], x: Float[Tensor, "*batch width"]
) -> Float[Tensor, "pos 1"]:
    """The constant of every position of ``x``; those beyond the last known take the last.

    Raises:
        ValueError: ``x`` has no axis of positions.
    """
    if x.ndim < 2:
        raise ValueError("scales per position need an input [..., pos, width]")
    index = torch.arange(x.shape[-2], device=x.device).clamp_max(len(constants) - 1)
    return constants.to(x.dtype)[index].unsqueeze(-1)


class FixedScale(NormModule):
    """``y = (x - mean(x)) / scale * weight + bias`` over the last axis.

    Args:
        width: size of the last axis.
        scale: the constant denominator, in the units of ``x``, positive; or one per
            position, for an input ``[..., pos, width]`` that starts at position 0, so not
            for steps of generation with a cache.
        centred: whether the mean over the last axis is subtracted first.
        gain: whether a gain is kept.
        bias: whether an additive bias is kept.
    """

    scale: Tensor

    def __init__(
        self,
        width: int,
        scale: float | tuple[float, ...] = 1.0,
        *,
        centred: bool = True,
        gain: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__(
            NormSpec(
                NormKind.FIXED_SCALE,
                width,
                centred=centred,
                gain=gain,
                bias=bias,
                fixed_scale=None if isinstance(scale, tuple) else float(scale),
                position_scales=scale if isinstance(scale, tuple) else None,
            )
        )
        self.centred = centred
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.get_default_dtype()))

    @property
    def spec(self) -> NormSpec:
        """With centring, gain, bias and scale as they are now."""
        spec = replace(
            self.built_spec,
            centred=self.centred,
            gain=self.weight is not None,
            bias=self.bias is not None,
        )
        if spec.position_scales is None:
            return replace(spec, fixed_scale=stored_number(self.scale, spec.fixed_scale or 1.0))
        if self.scale.is_meta:
            return spec
        return replace(spec, position_scales=tuple(value.item() for value in self.scale))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Apply the map in float32 or wider; the result has the dtype of ``x``."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        centred = wide - wide.mean(-1, keepdim=True) if self.centred else wide
        gain = 1.0 if self.weight is None else self.weight
        if self.scale.ndim:
            y = centred / by_position(self.scale, wide) * gain
        else:
            y = centred * (gain / self.scale).to(wide.dtype)
        return (y if self.bias is None else y + self.bias.to(wide.dtype)).to(x.dtype)

    def extra_repr(self) -> str:
        """Width and scale, for ``print(model)``."""
        shown = f"{self.scale.item():.4g}" if self.scale.ndim == 0 else f"{len(self.scale)} values"
        return f"{self.width}, scale={shown}, centred={self.centred}"


def make(spec: NormSpec) -> nn.Module:
    """The module; a LayerNorm or RMSNorm with a huge eps where the scale is stored as one."""
    if spec.eps_encoded:
        kind = NormKind.LAYER_NORM if spec.centred else NormKind.RMS_NORM
        live = replace(spec, kind=kind, fixed_scale=None, eps_encoded=False)
        return torch_norm(live) or TokenNorm(live, RootMeanSquare())
    constant = spec.position_scales or spec.fixed_scale or 1.0
    return FixedScale(spec.width, constant, centred=spec.centred, gain=spec.gain, bias=spec.bias)


ROW = KindRow(
    kind=NormKind.FIXED_SCALE,
    title="Fixed scale",
    formula="y = (x - mean(x)) / s * gamma + beta, s a constant, or one per position",
    source="Baroni et al. 2025, Transformers Don't Need LayerNorm at Inference Time, 2507.02559",
    eps="none; in the public format the scale is stored as a huge eps, s = sqrt(eps)",
    couples=Coupling.MEAN,
    annihilates="the all-ones direction where centred, exactly",
    remark=(
        "Scale-free, not norm-free: centring, gain and bias remain. One constant at each "
        "position is what freezing a measured scale by position gives."
    ),
    norm_map=MAP,
    make=make,
)
