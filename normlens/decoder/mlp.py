"""The MLP of a block."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.activations import ACT2FN

from normlens.decoder.combine import LearnedScale
from normlens.decoder.linear import LINEARS
from normlens.decoder.through import Norms, through

if TYPE_CHECKING:
    from normlens.decoder.config import DecoderConfig

LEARNABLE_LEAKY_RELU = "learnable_leaky_relu"


class LearnableLeakyReLU(nn.Module):
    """``x`` where positive, ``slope * x`` elsewhere; one trained slope.

    Source: 2410.09637 (one slope per layer; 0.01 at first is its published code's).
    """

    def __init__(self, slope: float = 0.01) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return torch.where(x > 0, x, self.slope * x)


def is_activation(name: str) -> bool:
    """Whether :func:`activation` knows the name."""
    return name == LEARNABLE_LEAKY_RELU or name in ACT2FN


def activation(name: str) -> nn.Module:
    """The activation of that name."""
    return LearnableLeakyReLU() if name == LEARNABLE_LEAKY_RELU else ACT2FN[name]


class MLP(nn.Module):
    """``down(N(act(N(up(x)))))`` or, gated, ``down(N(act(N(gate(x))) * N(up(x))))``.

    nGPT multiplies what comes from the first linears by learned vectors: ``s_v sqrt(d_model)``
    where it enters the activation, which else would see numbers of size ``1 / sqrt(d_model)``
    and be linear, and ``s_u`` beside a gate (2410.01131, eq. 20-21; both start at 1).

    Args:
        config: of the model.
        norms: makes the norms after the first linears and before the last.
    """

    def __init__(self, config: DecoderConfig, norms: Norms) -> None:
        super().__init__()
        d_model, d_mlp, scheme = config.hidden_size, config.intermediate_size, config.scheme
        assert d_mlp is not None
        made, bias = LINEARS[config.linear], config.linear_bias
        projections = scheme.mlp.projections
        self.up_proj = made(nn.Linear(d_model, d_mlp, bias=bias))
        self.up_norm = norms(d_mlp) if projections else None
        activated = LearnedScale(d_mlp, math.sqrt(d_model), 1.0) if scheme.hyperspherical else None
        beside = LearnedScale(d_mlp, 1.0, 1.0) if scheme.hyperspherical else None
        self.up_scale = beside if config.gated else activated
        self.gate_proj = made(nn.Linear(d_model, d_mlp, bias=bias)) if config.gated else None
        self.gate_norm = norms(d_mlp) if projections and config.gated else None
        self.gate_scale = activated if config.gated else None
        self.act = activation(config.activation)
        self.inner_norm = norms(d_mlp) if scheme.mlp.inner else None
        self.down_proj = made(nn.Linear(d_mlp, d_model, bias=bias))

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """What the MLP writes, before any norm on it."""
        hidden = through(self.up_scale, through(self.up_norm, self.up_proj(x)))
        if self.gate_proj is None:
            hidden = self.act(hidden)
        else:
            gate = through(self.gate_scale, through(self.gate_norm, self.gate_proj(x)))
            hidden = self.act(gate) * hidden
        return self.down_proj(through(self.inner_norm, hidden))
