"""The composed decoder of :mod:`normlens.decoder`.

Every norm of every placement has a rule; those that a model lacks have no module. What the
rules cannot leave open is in the rows: whether the MLP is gated, whether positions are
embedded, whether there is a final norm, and whether branch and stream have a norm each.
"""

from __future__ import annotations

from normlens.models.families.row import Family, NormRule
from normlens.models.lens import Layout, Role

MODEL_TYPE = "normlens_decoder"

QKV = ("attn.body.q_proj", "attn.body.k_proj", "attn.body.v_proj")


def _row(*, gated: bool, embedded: bool, final: bool, both: bool) -> Family:
    """One layout.

    Args:
        gated: whether the MLP has a gate.
        embedded: whether positions are embedded.
        final: whether there is a norm before the unembedding.
        both: whether a branch's output and the stream after it have a norm each (nGPT).
    """
    up = ("mlp.body.gate_proj", "mlp.body.up_proj") if gated else ("mlp.body.up_proj",)
    after_attention = Role.EXIT_ATTN if both else Role.POST_ATTN
    after_mlp = Role.EXIT_MLP if both else Role.POST_MLP
    return Family(
        model_type=MODEL_TYPE,
        blocks="model.layers",
        norms=(
            NormRule("attn.entry_norm", Role.PRE_ATTN, QKV, optional=True, on_stream=True),
            NormRule("attn.pre_norm", Role.PRE_ATTN, QKV, optional=True),
            NormRule("attn.body.q_norm", Role.Q, optional=True, layout=Layout.BATCH_POS_HEAD),
            NormRule("attn.body.k_norm", Role.K, optional=True, layout=Layout.BATCH_POS_HEAD),
            NormRule("attn.body.v_norm", Role.V, optional=True),
            NormRule("attn.body.inner_norm", Role.PRE_O, ("attn.body.o_proj",), optional=True),
            NormRule("attn.post_norm", Role.POST_ATTN, optional=True),
            NormRule("attn.exit_norm", after_attention, up, optional=True, on_stream=True),
            NormRule("mlp.entry_norm", Role.PRE_MLP, up, optional=True, on_stream=True),
            NormRule("mlp.pre_norm", Role.PRE_MLP, up, optional=True),
            NormRule("mlp.body.up_norm", Role.UP, optional=True),
            NormRule("mlp.body.gate_norm", Role.GATE, optional=True),
            NormRule("mlp.body.inner_norm", Role.PRE_DOWN, ("mlp.body.down_proj",), optional=True),
            NormRule("mlp.post_norm", Role.POST_MLP, optional=True),
            NormRule("mlp.exit_norm", after_mlp, optional=True, on_stream=True),
        ),
        final_norm="model.final_norm" if final else None,
        embeddings=("model.embed_tokens", *(("model.embed_positions",) if embedded else ())),
        unembedding="lm_head",
        attention="attn.body",
        attention_out="attn.body.o_proj",
        mlp_out="mlp.body.down_proj",
        qkv=QKV,
        # The eps of a norm is in the config's description of it.
        eps_field=None,
        kv_heads="num_key_value_heads",
        attention_rule="attention",
        branch_scales=("attn.scale", "mlp.scale"),
        outer_norms=(NormRule("model.embed_norm", Role.EMBED, optional=True, on_stream=True),),
        when=(
            ("gated", gated),
            ("positions", "learned" if embedded else "rotary"),
            *((("placement", "ngpt"),) if both else ()),
            *(() if final else (("final_norm", None),)),
        ),
    )


ROWS = tuple(
    _row(gated=gated, embedded=embedded, final=final, both=both)
    for gated in (False, True)
    for embedded in (True, False)
    # The first row that holds counts, so those that ask for more come first.
    for both in (True, False)
    for final in (False, True)
)
