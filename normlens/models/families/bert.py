"""BERT: an encoder whose norms sit on the residual stream, after each addition (post-LN)."""

from __future__ import annotations

from dataclasses import replace

from normlens.models.families.row import Family, NormRule
from normlens.models.lens import Role

EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings")

ENCODER = Family(
    model_type="bert",
    blocks="encoder.layer",
    norms=(
        NormRule(
            "attention.output.LayerNorm",
            Role.POST_ATTN,
            ("intermediate.dense",),
            on_stream=True,
        ),
        NormRule("output.LayerNorm", Role.POST_MLP, on_stream=True),
    ),
    final_norm=None,
    embeddings=tuple(f"embeddings.{name}" for name in EMBEDDINGS),
    unembedding=None,
    attention="attention",
    attention_out="attention.output.dense",
    mlp_out="output.dense",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    eps_field="layer_norm_eps",
    outer_norms=(NormRule("embeddings.LayerNorm", Role.EMBED, on_stream=True),),
    causal=False,
    when=(("is_decoder", False),),
    model_class="BertModel",
)

MASKED_LM = replace(
    ENCODER,
    blocks="bert.encoder.layer",
    embeddings=tuple(f"bert.embeddings.{name}" for name in EMBEDDINGS),
    unembedding="cls.predictions.decoder",
    outer_norms=(
        NormRule("bert.embeddings.LayerNorm", Role.EMBED, on_stream=True),
        # It reads a hidden layer of the head, not the residual stream: no final norm.
        NormRule("cls.predictions.transform.LayerNorm", Role.OTHER, ("cls.predictions.decoder",)),
    ),
    model_class="BertForMaskedLM",
)

ROWS = (ENCODER, MASKED_LM)
