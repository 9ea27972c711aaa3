"""A block: attention and MLP, each a branch with the norms around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from normlens.decoder.attention import Attention
from normlens.decoder.combine import Add, Interpolate, LearnedScale
from normlens.decoder.mlp import MLP
from normlens.decoder.placement import BranchNorms
from normlens.decoder.through import Norms, through
from normlens.norms import NormSpec, ScaledNorm, make_norm

if TYPE_CHECKING:
    from normlens.decoder.config import DecoderConfig

INTERPOLATION_RATE = 0.05
"""Initial rate of nGPT's interpolation (2410.01131, section 2.5)."""


class Branch(nn.Module):
    """``exit(combine(entry(x), scale * post(body(pre(entry(x))))))``; see ``placement``.

    Args:
        config: of the model.
        has: which norms there are.
        body: attention or MLP.
        norms: makes the norms after the branch.
        pre_norms: makes the norms before it.
    """

    def __init__(
        self,
        config: DecoderConfig,
        has: BranchNorms,
        body: nn.Module,
        norms: Norms,
        pre_norms: Norms,
    ) -> None:
        super().__init__()
        width = config.hidden_size
        self.entry_norm = pre_norms(width) if has.entry else None
        self.pre_norm = pre_norms(width) if has.pre else None
        self.body = body
        self.post_norm = norms(width) if has.post else None
        self.scale = None
        if config.branch_scale is not None:
            self.scale = LearnedScale(None, config.branch_scale)
        self.combine = combination(config)
        self.exit_norm = norms(width) if has.exit else None

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], **context: Any
    ) -> Float[Tensor, "batch pos d_model"]:
        """The stream after the branch."""
        x = through(self.entry_norm, x)
        y = self.body(through(self.pre_norm, x), **context)
        y = through(self.scale, through(self.post_norm, y))
        return through(self.exit_norm, self.combine(x, y))


def combination(config: DecoderConfig) -> nn.Module:
    """How a branch enters the stream of a model of that config."""
    if config.scheme.hyperspherical:
        return Interpolate(config.hidden_size, INTERPOLATION_RATE)
    return Add((2 * config.num_hidden_layers) ** 0.25 if config.scheme.deep else 1.0)


class Block(GradientCheckpointingLayer):
    """Attention, then MLP."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        scheme = config.scheme
        assert config.norm is not None
        norms = maker(config.norm)
        pre_norms = norms
        if config.depth_factor == "inverse_sqrt":
            pre_norms = maker(config.norm, factor=(layer + 1) ** -0.5)
        qk = config.qk_norm or (config.norm if scheme.qk else None)
        attention = Attention(config, layer, norms, maker(qk) if qk else None)
        self.attn = Branch(config, scheme.attention, attention, norms, pre_norms)
        self.mlp = Branch(config, scheme.mlp, MLP(config, norms), norms, pre_norms)

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], **context: Any
    ) -> Float[Tensor, "batch pos d_model"]:
        """The stream after the block."""
        return self.mlp(self.attn(x, **context))


def maker(fields: dict[str, Any], factor: float = 1.0) -> Callable[[int], nn.Module]:
    """A function that makes norms from the fields of a spec, for any width.

    Args:
        fields: of a :class:`~normlens.norms.NormSpec`, without its width.
        factor: what their output is multiplied by.
    """

    def make(width: int) -> nn.Module:
        norm = make_norm(NormSpec.of(fields, width))
        return norm if factor == 1.0 else ScaledNorm(norm, factor)

    return make
