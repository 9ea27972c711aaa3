"""How heads and biases of one layer's attention reach the residual.

    c_h    = f * z_h W'           f = branch_scale,                     W' = W_O[h]
                                  f = branch_scale / scale_post(token), W' = centre(W_O[h]) gamma
    c_bias = f * b' + branch_scale * beta_post           b' = b_O, or centre(b_O) gamma

where the second form holds if a norm follows attention. Its scale, that of the whole
attention output, is taken as it is: heads then sum to what attention adds, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.protocol import Components, ComponentWeights


@dataclass(frozen=True)
class AttentionTerms:
    """Heads as ``z_h w_o[h]`` and their shared bias.

    Attributes:
        z: factors of each token and head included.
        w_o: gain of a norm after attention included.
        bias: None without one; without a norm after attention the same for every token.
    """

    z: Float[Tensor, "batch pos width"]
    w_o: Float[Tensor, "head d_head d_model"]
    bias: Float[Tensor, " d_model"] | Float[Tensor, "batch pos d_model"] | None


def has_attention_bias(weights: ComponentWeights, layer: int) -> bool:
    """Whether a layer's attention adds anything that belongs to no head."""
    norm = weights.post_attention.get(layer)
    return weights.b_o[layer] is not None or (norm is not None and norm.beta is not None)


def attention_terms(
    components: Components, weights: ComponentWeights, layer: int, dtype: torch.dtype
) -> AttentionTerms:
    """The terms of one layer, computed in ``dtype``; no head's output is made."""
    z, w_o = components.z[layer].to(dtype), weights.w_o[layer].to(dtype)
    b_o, branch = weights.b_o[layer], weights.scaling.branch
    b_o = None if b_o is None else b_o.to(dtype)
    norm = weights.post_attention.get(layer)
    if norm is None:
        if branch == 1.0:
            return AttentionTerms(z, w_o, b_o)
        return AttentionTerms(z * branch, w_o, None if b_o is None else b_o * branch)
    factor = (branch / components.attention_scale[layer]).to(dtype)[..., None]
    bias = None if b_o is None else factor * norm.linear(b_o)
    if norm.beta is not None:
        beta = norm.beta.to(dtype) * branch
        bias = beta.expand(*factor.shape[:2], -1) if bias is None else bias + beta
    return AttentionTerms(z * factor, norm.linear(w_o), bias)
