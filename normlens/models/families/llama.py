"""Llama and the families that keep its names: pre-norm, rotary, gated MLP."""

from __future__ import annotations

from dataclasses import replace

from normlens.models.families.row import Family, NormRule
from normlens.models.lens import Role

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATED = ("mlp.gate_proj", "mlp.up_proj")

LLAMA = Family(
    model_type="llama",
    blocks="model.layers",
    norms=(
        NormRule("input_layernorm", Role.PRE_ATTN, QKV),
        NormRule("post_attention_layernorm", Role.PRE_MLP, GATED),
    ),
    final_norm="model.norm",
    embeddings=("model.embed_tokens",),
    unembedding="lm_head",
    attention="self_attn",
    attention_out="self_attn.o_proj",
    mlp_out="mlp.down_proj",
    qkv=QKV,
    eps_field="rms_norm_eps",
    kv_heads="num_key_value_heads",
)

PHI3 = replace(
    LLAMA,
    model_type="phi3",
    norms=(
        NormRule("input_layernorm", Role.PRE_ATTN, ("self_attn.qkv_proj",)),
        NormRule("post_attention_layernorm", Role.PRE_MLP, ("mlp.gate_up_proj",)),
    ),
    qkv=("self_attn.qkv_proj",),
    fused_qkv="blocks",
)

NEMOTRON = replace(
    LLAMA,
    model_type="nemotron",
    norms=(LLAMA.norms[0], NormRule("post_attention_layernorm", Role.PRE_MLP, ("mlp.up_proj",))),
    eps_field="norm_eps",
)

STARCODER2 = replace(
    LLAMA,
    model_type="starcoder2",
    norms=(LLAMA.norms[0], NormRule("post_attention_layernorm", Role.PRE_MLP, ("mlp.c_fc",))),
    mlp_out="mlp.c_proj",
    eps_field="norm_epsilon",
)

ROWS = (
    LLAMA,
    replace(LLAMA, model_type="mistral"),
    replace(LLAMA, model_type="qwen2"),
    replace(LLAMA, model_type="gemma"),
    replace(LLAMA, model_type="granite"),
    # OLMo's norms have no parameters and an eps that is written in the code.
    replace(LLAMA, model_type="olmo", eps_field=None),
    PHI3,
    NEMOTRON,
    STARCODER2,
)
