"""GPT-2 and the decoders descended from it before Llama."""

from __future__ import annotations

from dataclasses import replace

from normlens.models.families.row import Family, NormRule
from normlens.models.lens import Layout, Role

GPT2 = Family(
    model_type="gpt2",
    blocks="transformer.h",
    norms=(
        NormRule("ln_1", Role.PRE_ATTN, ("attn.c_attn",)),
        NormRule("ln_2", Role.PRE_MLP, ("mlp.c_fc",)),
    ),
    final_norm="transformer.ln_f",
    embeddings=("transformer.wte", "transformer.wpe"),
    unembedding="lm_head",
    attention="attn",
    attention_out="attn.c_proj",
    mlp_out="mlp.c_proj",
    qkv=("attn.c_attn",),
    fused_qkv="blocks",
    weight_layout="in_out",
    eps_field="layer_norm_epsilon",
)

GPTJ = Family(
    model_type="gptj",
    blocks="transformer.h",
    norms=(
        NormRule("ln_1", Role.PRE_ATTN, ("attn.q_proj", "attn.k_proj", "attn.v_proj", "mlp.fc_in")),
    ),
    final_norm="transformer.ln_f",
    embeddings=("transformer.wte",),
    unembedding="lm_head",
    attention="attn",
    attention_out="attn.out_proj",
    mlp_out="mlp.fc_out",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    eps_field="layer_norm_epsilon",
    parallel=True,
)

NEOX = Family(
    model_type="gpt_neox",
    blocks="gpt_neox.layers",
    norms=(
        NormRule("input_layernorm", Role.PRE_ATTN, ("attention.query_key_value",)),
        NormRule("post_attention_layernorm", Role.PRE_MLP, ("mlp.dense_h_to_4h",)),
    ),
    final_norm="gpt_neox.final_layer_norm",
    embeddings=("gpt_neox.embed_in",),
    unembedding="lm_head",
    attention="attention",
    attention_out="attention.dense",
    mlp_out="mlp.dense_4h_to_h",
    qkv=("attention.query_key_value",),
    fused_qkv="groups",
    eps_field="layer_norm_eps",
    parallel=True,
    when=(("use_parallel_residual", True),),
)

OPT_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

OPT = Family(
    model_type="opt",
    blocks="model.decoder.layers",
    norms=(
        NormRule("self_attn_layer_norm", Role.PRE_ATTN, OPT_QKV),
        NormRule("final_layer_norm", Role.PRE_MLP, ("fc1",), layout=Layout.PACKED),
    ),
    final_norm="model.decoder.final_layer_norm",
    embeddings=("model.decoder.embed_tokens", "model.decoder.embed_positions"),
    unembedding="lm_head",
    attention="self_attn",
    attention_out="self_attn.out_proj",
    mlp_out="fc2",
    qkv=OPT_QKV,
    # transformers leaves OPT's eps at torch's default.
    eps_field=None,
    when=(("do_layer_norm_before", True), ("_remove_final_layer_norm", False)),
)

OPT_POST = replace(
    OPT,
    norms=(
        NormRule("self_attn_layer_norm", Role.POST_ATTN, ("fc1",), on_stream=True),
        NormRule("final_layer_norm", Role.POST_MLP, on_stream=True),
    ),
    final_norm=None,
    when=(("do_layer_norm_before", False),),
)

BLOOM = Family(
    model_type="bloom",
    blocks="transformer.h",
    norms=(
        NormRule("input_layernorm", Role.PRE_ATTN, ("self_attention.query_key_value",)),
        NormRule("post_attention_layernorm", Role.PRE_MLP, ("mlp.dense_h_to_4h",)),
    ),
    final_norm="transformer.ln_f",
    embeddings=("transformer.word_embeddings",),
    unembedding="lm_head",
    attention="self_attention",
    attention_out="self_attention.dense",
    mlp_out="mlp.dense_4h_to_h",
    qkv=("self_attention.query_key_value",),
    fused_qkv="groups",
    eps_field="layer_norm_epsilon",
    outer_norms=(NormRule("transformer.word_embeddings_layernorm", Role.EMBED, on_stream=True),),
    context=None,
    when=(("apply_residual_connection_post_layernorm", False),),
)

MPT = Family(
    model_type="mpt",
    blocks="transformer.blocks",
    norms=(
        NormRule("norm_1", Role.PRE_ATTN, ("attn.Wqkv",)),
        NormRule("norm_2", Role.PRE_MLP, ("ffn.up_proj",)),
    ),
    final_norm="transformer.norm_f",
    embeddings=("transformer.wte",),
    unembedding="lm_head",
    attention="attn",
    attention_out="attn.out_proj",
    mlp_out="ffn.down_proj",
    qkv=("attn.Wqkv",),
    fused_qkv="blocks",
    eps_field="layer_norm_epsilon",
    # ALiBi has no last position, but transformers builds its biases up to this one.
    context="max_seq_len",
)

ROWS = (
    GPT2,
    GPTJ,
    NEOX,
    replace(NEOX, parallel=False, when=(("use_parallel_residual", False),)),
    OPT,
    replace(
        OPT,
        final_norm=None,
        when=(("do_layer_norm_before", True), ("_remove_final_layer_norm", True)),
    ),
    OPT_POST,
    BLOOM,
    MPT,
)
