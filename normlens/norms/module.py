"""The base of our own norm modules: float32 or wider inside, gain and bias as torch has them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normlens.norms.spec import NormSpec


class NormModule(nn.Module):
    """``y = normalise(x) * weight + bias`` over the last axis.

    Args:
        spec: constants; ``factor`` is not looked at (see ``ScaledNorm``).

    Attributes:
        width: size of the last axis.
        weight: gain ``[width]``, or the gain minus 1 where the spec has a unit offset; None
            where the spec has none.
        bias: ``[width]`` or None.
    """

    def __init__(self, spec: NormSpec) -> None:
        super().__init__()
        self.width = spec.width
        self.built_spec = spec
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if spec.gain:
            self.weight = nn.Parameter(self.initial_gain() - float(spec.unit_offset))
        if spec.bias:
            self.bias = nn.Parameter(torch.zeros(spec.width))

    @property
    def spec(self) -> NormSpec:
        """What the module computes, its trained and loaded constants included."""
        return self.built_spec

    def initial_gain(self) -> Tensor:
        """Gain of a new module."""
        return torch.ones(self.width)

    def normalise(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """``xhat``, in the dtype of ``x``, which is float32 or wider."""
        raise NotImplementedError

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Apply the map in float32 or wider; the result has the dtype of ``x``."""
        y = self.normalise(x.to(torch.promote_types(x.dtype, torch.float32)))
        if self.weight is not None:
            gain = self.weight.to(y.dtype)
            y = y * (gain + 1 if self.built_spec.unit_offset else gain)
        return (y if self.bias is None else y + self.bias.to(y.dtype)).to(x.dtype)

    def extra_repr(self) -> str:
        """Width and constants, for ``print(model)``."""
        spec = self.spec
        constants = {"eps": spec.eps, "alpha": spec.alpha, "scale": spec.fixed_scale}
        shown = [f"{name}={value:.4g}" for name, value in constants.items() if value is not None]
        switches = [name for name in ("centred", "unit_offset") if vars(spec)[name]]
        return ", ".join([str(self.width), *shown, *switches])


def stored_number(value: Tensor, built: float) -> float:
    """The value of a scalar, or what it was built with where there is no memory behind it.

    Args:
        value: a scalar; on the meta device it has no value.
        built: what the module was made with.
    """
    return built if value.is_meta else value.item()
