"""The attention of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from normlens.decoder.attention_weights import NORMALIZERS
from normlens.decoder.combine import LearnedScale
from normlens.decoder.linear import LINEARS
from normlens.decoder.through import Norms, through

if TYPE_CHECKING:
    from normlens.decoder.config import DecoderConfig

Rotary = tuple[Tensor, Tensor] | None


class Attention(nn.Module):
    """``o(N(weights(N(q(x)) N(k(x))^T) N(v(x))))``.

    Norms of q and k normalise each head by itself, that of v all heads together.

    Args:
        config: of the model.
        layer: block index, which the cache is told.
        norms: makes the norm of v and that before o.
        qk_norms: makes the norms of q and k; None where there are none.
    """

    def __init__(
        self, config: DecoderConfig, layer: int, norms: Norms, qk_norms: Norms | None
    ) -> None:
        super().__init__()
        assert config.head_dim is not None and config.num_key_value_heads is not None
        self.config = config
        self.layer = layer
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.is_causal = True
        self.scale = self.head_dim**-0.5
        if config.attention_scale is not None:
            self.scale = config.attention_scale
        made, bias = LINEARS[config.linear], config.linear_bias
        queries = config.num_attention_heads * self.head_dim
        keys = config.num_key_value_heads * self.head_dim
        self.q_proj = made(nn.Linear(config.hidden_size, queries, bias=bias))
        self.k_proj = made(nn.Linear(config.hidden_size, keys, bias=bias))
        self.v_proj = made(nn.Linear(config.hidden_size, keys, bias=bias))
        self.q_norm = qk_norms(self.head_dim) if qk_norms else None
        self.k_norm = qk_norms(self.head_dim) if qk_norms else None
        self.v_norm = norms(keys) if config.scheme.attention.projections else None
        self.temperature = None
        if config.qk_temperature is not None:
            self.temperature = LearnedScale(None, config.qk_temperature)
            self.scale = 1.0
        self.weights = NORMALIZERS[config.attention]()
        self.inner_norm = norms(queries) if config.scheme.attention.inner else None
        self.o_proj = made(nn.Linear(queries, config.hidden_size, bias=bias))

    def forward(
        self,
        x: Float[Tensor, "batch pos d_in"],
        mask: Tensor | None = None,
        rotary: Rotary = None,
        cache: Cache | None = None,
        **options: Any,
    ) -> Float[Tensor, "batch pos d_model"]:
        """What attention writes, before any norm on it."""
        heads = (*x.shape[:-1], -1, self.head_dim)
        query = through(self.q_norm, self.q_proj(x).view(heads)).transpose(1, 2)
        key = through(self.k_norm, self.k_proj(x).view(heads)).transpose(1, 2)
        value = through(self.v_norm, self.v_proj(x)).view(heads).transpose(1, 2)
        query = through(self.temperature, query)
        if rotary is not None:
            query, key = apply_rotary_pos_emb(query, key, *rotary)
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        mixed, _ = self.weights(self, query, key, value, mask, self.scale, **options)
        mixed = mixed.reshape(*x.shape[:-1], -1)
        return self.o_proj(through(self.inner_norm, mixed))
