"""Llama-like families with LayerNorm whose attention and MLP may run side by side."""

from __future__ import annotations

from dataclasses import replace

from normlens.models.families.llama import GATED, LLAMA, QKV
from normlens.models.families.row import NormRule
from normlens.models.lens import Layout, Role

COHERE = replace(
    LLAMA,
    model_type="cohere",
    norms=(
        NormRule("input_layernorm", Role.PRE_ATTN, (*QKV, *GATED)),
        NormRule("self_attn.q_norm", Role.Q, optional=True, layout=Layout.BATCH_POS_HEAD),
        NormRule("self_attn.k_norm", Role.K, optional=True, layout=Layout.BATCH_POS_HEAD),
    ),
    eps_field="layer_norm_eps",
    parallel=True,
)

PER_HEAD = (
    NormRule("self_attn.q_layernorm", Role.Q, optional=True, layout=Layout.BATCH_HEAD_POS),
    NormRule("self_attn.k_layernorm", Role.K, optional=True, layout=Layout.BATCH_HEAD_POS),
)

PHI = replace(
    LLAMA,
    model_type="phi",
    norms=(NormRule("input_layernorm", Role.PRE_ATTN, (*QKV, "mlp.fc1")), *PER_HEAD),
    final_norm="model.final_layernorm",
    attention_out="self_attn.dense",
    mlp_out="mlp.fc2",
    eps_field="layer_norm_eps",
    parallel=True,
)

STABLELM = replace(
    LLAMA,
    model_type="stablelm",
    norms=(LLAMA.norms[0], *PER_HEAD, LLAMA.norms[1]),
    eps_field="layer_norm_eps",
    when=(("use_parallel_residual", False),),
)

STABLELM_PARALLEL = replace(
    STABLELM,
    norms=(NormRule("input_layernorm", Role.PRE_ATTN, (*QKV, *GATED)), *PER_HEAD),
    parallel=True,
    when=(("use_parallel_residual", True),),
)

ROWS = (
    COHERE,
    replace(COHERE, model_type="cohere2", norms=COHERE.norms[:1]),
    PHI,
    STABLELM,
    STABLELM_PARALLEL,
)
