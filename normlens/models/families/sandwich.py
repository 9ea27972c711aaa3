"""Llama-like families with norms on queries and keys or after the branches."""

from __future__ import annotations

from dataclasses import replace

from normlens.models.families.llama import GATED, LLAMA, QKV
from normlens.models.families.row import NormRule
from normlens.models.lens import Layout, Role

QWEN3 = replace(
    LLAMA,
    model_type="qwen3",
    norms=(
        LLAMA.norms[0],
        NormRule("self_attn.q_norm", Role.Q, layout=Layout.BATCH_POS_HEAD),
        NormRule("self_attn.k_norm", Role.K, layout=Layout.BATCH_POS_HEAD),
        LLAMA.norms[1],
    ),
)

GEMMA2 = replace(
    LLAMA,
    model_type="gemma2",
    norms=(
        LLAMA.norms[0],
        NormRule("post_attention_layernorm", Role.POST_ATTN),
        NormRule("pre_feedforward_layernorm", Role.PRE_MLP, GATED),
        NormRule("post_feedforward_layernorm", Role.POST_MLP),
    ),
)

GEMMA3 = replace(
    GEMMA2,
    model_type="gemma3_text",
    norms=(
        GEMMA2.norms[0],
        NormRule("self_attn.q_norm", Role.Q, layout=Layout.BATCH_HEAD_POS),
        NormRule("self_attn.k_norm", Role.K, layout=Layout.BATCH_HEAD_POS),
        *GEMMA2.norms[1:],
    ),
)

# One norm over all heads of the projection, so its input is laid out as any other.
OLMO2 = replace(
    LLAMA,
    model_type="olmo2",
    norms=(
        NormRule("self_attn.q_norm", Role.Q),
        NormRule("self_attn.k_norm", Role.K),
        NormRule("post_attention_layernorm", Role.POST_ATTN),
        NormRule("post_feedforward_layernorm", Role.POST_MLP),
    ),
)

GLM4 = replace(
    LLAMA,
    model_type="glm4",
    norms=(
        NormRule("input_layernorm", Role.PRE_ATTN, QKV),
        NormRule("post_self_attn_layernorm", Role.POST_ATTN),
        NormRule("post_attention_layernorm", Role.PRE_MLP, ("mlp.gate_up_proj",)),
        NormRule("post_mlp_layernorm", Role.POST_MLP),
    ),
)

ROWS = (QWEN3, GEMMA2, GEMMA3, OLMO2, replace(OLMO2, model_type="olmo3"), GLM4)
