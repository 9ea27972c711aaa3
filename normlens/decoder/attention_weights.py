"""How attention logits become weights: objects that a block is composed of.

With ``s_ij`` the scaled logits and ``j`` over the keys that query ``i`` sees:

* softmax: ``exp(s_ij) / sum_j exp(s_ij)``
* softplus_l1: ``log(1 + exp(s_ij)) / sum_j log(1 + exp(s_ij))`` (2501.13428: softmax with
  softplus in place of exp; without that paper's scaling by length and re-weighting)
* relu: ``max(0, s_ij) / n_i`` with ``n_i`` the number of those keys, which in 2309.08586 is the
  sequence length; its weights need not add up to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward, repeat_kv

Weights = Float[Tensor, "batch head query key"]


def softplus_l1(scores: Weights, visible: Bool[Tensor, "batch_or_1 one query key"]) -> Weights:
    """``softplus(s) / sum softplus(s)`` over visible keys; 0 at the others."""
    if has_torch_function_unary(scores):
        return handle_torch_function(softplus_l1, (scores,), scores, visible)
    positive = functional.softplus(scores).masked_fill(~visible, 0.0)
    return positive / positive.sum(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)


def relu_mean(scores: Weights, visible: Bool[Tensor, "batch_or_1 one query key"]) -> Weights:
    """``relu(s) / n`` with ``n`` the number of visible keys; 0 at the others."""
    if has_torch_function_unary(scores):
        return handle_torch_function(relu_mean, (scores,), scores, visible)
    positive = functional.relu(scores).masked_fill(~visible, 0.0)
    return positive / visible.sum(-1, keepdim=True).clamp_min(1)


class AttentionNormalizer(nn.Module):
    """Turns queries, keys and values into mixed values, by way of weights.

    Subclasses return ``(mixed [batch pos head d_head], weights [batch head query key])``; the
    weights are None where no kernel materialises them.
    """


class Softmax(AttentionNormalizer):
    """Softmax by the attention implementation of the config (sdpa, eager, ...)."""

    def forward(
        self,
        attention: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Mixed values ``[batch pos head d_head]`` and, where materialised, the weights."""
        config: Any = attention.config
        attend: Any = ALL_ATTENTION_FUNCTIONS.get_interface(
            config._attn_implementation, eager_attention_forward
        )
        return attend(attention, query, key, value, mask, dropout=0.0, scaling=scale, **options)


class Elementwise(AttentionNormalizer):
    """Weights from a function of each logit and a sum over visible keys.

    Args:
        weights: takes logits ``[batch head query key]``, at least float32, and which keys
            are visible.
    """

    def __init__(self, weights: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weights = weights

    def forward(
        self,
        attention: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """Mixed values ``[batch pos head d_head]`` and the weights."""
        groups: Any = attention.num_key_value_groups
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        scores = torch.matmul(query, key.transpose(-1, -2)) * scale
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        weights = self.weights(wide, visible_keys(mask, scores)).to(value.dtype)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def visible_keys(mask: Tensor | None, scores: Weights) -> Bool[Tensor, "batch_or_1 one query key"]:
    """Which keys each query sees, from a mask as transformers makes it."""
    queries, keys = scores.shape[-2:]
    if mask is None:
        everything = torch.ones(queries, keys, dtype=torch.bool, device=scores.device)
        return everything.tril(keys - queries)[None, None]
    mask = mask[..., :keys]
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


NORMALIZERS: Mapping[str, Callable[[], AttentionNormalizer]] = MappingProxyType(
    {
        "softmax": Softmax,
        "softplus_l1": lambda: Elementwise(softplus_l1),
        "relu": lambda: Elementwise(relu_mean),
    }
)
"""Attention normalizers by name."""
