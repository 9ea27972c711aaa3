"""The base of norms whose statistics are those of the batch, per feature.

Training: statistics over all tokens of the batch, padding included and later positions too,
so a token's output depends on tokens after it. Eval: constants, an affine map per feature.
A forward pass that is repeated (gradient checkpointing) counts twice.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.norms.module import NormModule
from normlens.norms.spec import NormSpec

Features = Float[Tensor, " width"]


class BatchNormModule(NormModule):
    """``y = (x - mean) / scale * weight + bias``, each feature by statistics of its own.

    Args:
        spec: of a batch kind.
    """

    def __init__(self, spec: NormSpec) -> None:
        super().__init__(spec)
        self.register_buffer("iterations", torch.tensor(0))

    iterations: Tensor

    @property
    def eps(self) -> float:
        """What is added to a mean square."""
        return self.built_spec.eps or 0.0

    def running(self) -> tuple[Features | None, Features]:
        """The mean (None where none is subtracted) and the mean square used in eval mode."""
        raise NotImplementedError

    def folded(self) -> tuple[Features, Features | None]:
        """Gain and bias of the affine map in eval mode, float64, statistics folded in."""
        mean, square = self.running()
        gain = (square.double() + self.eps).rsqrt()
        if self.weight is not None:
            gain = gain * self.weight.detach().double()
        bias = None if self.bias is None else self.bias.detach().double()
        if mean is not None:
            shift = -mean.double() * gain
            bias = shift if bias is None else bias + shift
        return gain, bias

    def normalise(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """By the batch in training mode, by running statistics in eval mode."""
        if self.training:
            self.iterations += 1
            flat = x.reshape(-1, self.width)
            return self.normalise_batch(flat).reshape(x.shape)
        mean, square = self.running()
        centred = x if mean is None else x - mean.to(x.dtype)
        return centred / (square.to(x.dtype) + self.eps).sqrt()

    def normalise_batch(self, x: Float[Tensor, "token width"]) -> Float[Tensor, "token width"]:
        """``xhat`` in training mode; updates the running statistics."""
        raise NotImplementedError


def move_average(average: Tensor, value: Tensor, keep: float) -> None:
    """``average = keep * average + (1 - keep) * value``, in place."""
    average.mul_(keep).add_(value.detach().to(average.dtype), alpha=1 - keep)


def apply_function(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """The output of a function with a backward pass of its own."""
    output = function.apply(*inputs)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] untyped in torch
    assert isinstance(output, Tensor)
    return output
