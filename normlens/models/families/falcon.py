"""Falcon: three layouts of norms, with rotary positions or with ALiBi.

RW and 1B run attention and MLP in turn; 7B runs them side by side from one norm; 40B and
180B from two; 11B (Falcon 2) from one, with grouped keys and values.
"""

from __future__ import annotations

from dataclasses import replace

from normlens.models.families.row import Family, NormRule
from normlens.models.lens import Role

QKV, MLP = "self_attention.query_key_value", "mlp.dense_h_to_4h"
OLD, NEW = ("new_decoder_architecture", False), ("new_decoder_architecture", True)
SHARED_NORM = (NormRule("input_layernorm", Role.PRE_ATTN, (QKV, MLP)),)

SEQUENTIAL = Family(
    model_type="falcon",
    blocks="transformer.h",
    norms=(
        NormRule("input_layernorm", Role.PRE_ATTN, (QKV,)),
        NormRule("post_attention_layernorm", Role.PRE_MLP, (MLP,)),
    ),
    final_norm="transformer.ln_f",
    embeddings=("transformer.word_embeddings",),
    unembedding="lm_head",
    attention="self_attention",
    attention_out="self_attention.dense",
    mlp_out="mlp.dense_4h_to_h",
    qkv=(QKV,),
    fused_qkv="groups",
    eps_field="layer_norm_epsilon",
    when=(OLD, ("parallel_attn", False), ("multi_query", False)),
)

SEQUENTIAL_MULTI_QUERY = replace(
    SEQUENTIAL, kv_heads=1, when=(OLD, ("parallel_attn", False), ("multi_query", True))
)

PARALLEL = replace(
    SEQUENTIAL,
    norms=SHARED_NORM,
    parallel=True,
    when=(OLD, ("parallel_attn", True), ("multi_query", False)),
)

PARALLEL_MULTI_QUERY = replace(
    PARALLEL, kv_heads=1, when=(OLD, ("parallel_attn", True), ("multi_query", True))
)

GROUPED = replace(
    PARALLEL,
    kv_heads="num_kv_heads",
    when=(NEW, ("parallel_attn", True), ("num_ln_in_parallel_attn", 1)),
)

GROUPED_TWO_NORMS = replace(
    GROUPED,
    norms=(
        NormRule("ln_attn", Role.PRE_ATTN, (QKV,)),
        NormRule("ln_mlp", Role.PRE_MLP, (MLP,)),
    ),
    when=(NEW, ("parallel_attn", True), ("num_ln_in_parallel_attn", 2)),
)

_LAYOUTS = (
    SEQUENTIAL,
    SEQUENTIAL_MULTI_QUERY,
    PARALLEL,
    PARALLEL_MULTI_QUERY,
    GROUPED,
    GROUPED_TWO_NORMS,
)

ROWS = tuple(
    replace(row, context=context, when=(*row.when, ("alibi", alibi)))
    for row in _LAYOUTS
    for alibi, context in ((False, "max_position_embeddings"), (True, None))
)
