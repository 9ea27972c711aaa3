"""Where each family of architectures keeps its parts: rows of data, one per model type.

Paths are module paths of the Hugging Face causal-LM class. Nothing outside this package
needs to know what a family is: sites and components are resolved through these rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedModel

from normlens.errors import LoadError
from normlens.models.lens import Role


@dataclass(frozen=True)
class BlockNorm:
    """A norm of every block.

    Attributes:
        attribute: module path inside the block.
        role: where it sits.
        feeds: module paths inside the block of the linears that read its output.
    """

    attribute: str
    role: Role
    feeds: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """One architecture family.

    Attributes:
        model_type: ``config.model_type``.
        blocks: path of the module list of blocks.
        norms: norms of a block in order of execution.
        final_norm: path of the norm before the unembedding.
        embeddings: paths of the embedding modules whose sum enters the first block.
        unembedding: path of the linear that reads the final norm.
        attention: path of the attention module inside a block.
        attention_out: path inside a block of the linear that writes attention's output.
        mlp_out: path inside a block of the linear that writes the MLP's output.
        qkv: paths inside a block of the linears that make queries, keys and values: one
            path where they are fused along the output axis in the order q, k, v.
        weight_layout: ``in_out`` where a linear's weight is ``[in, out]`` (GPT-2's
            Conv1D), ``out_in`` for ``torch.nn.Linear``. The unembedding is always out_in.
        eps_field: config field that sets the eps of new norms; never read, only written
            where an edit must leave a config that describes the edited model.
        kv_heads: config field with the number of key-value heads, None where every
            query head has its own.
    """

    model_type: str
    blocks: str
    norms: tuple[BlockNorm, ...]
    final_norm: str
    embeddings: tuple[str, ...]
    unembedding: str
    attention: str
    attention_out: str
    mlp_out: str
    qkv: tuple[str, ...]
    weight_layout: Literal["in_out", "out_in"]
    eps_field: str
    kv_heads: str | None = None


FAMILIES = (
    Family(
        model_type="gpt2",
        blocks="transformer.h",
        norms=(
            BlockNorm("ln_1", Role.PRE_ATTN, ("attn.c_attn",)),
            BlockNorm("ln_2", Role.PRE_MLP, ("mlp.c_fc",)),
        ),
        final_norm="transformer.ln_f",
        embeddings=("transformer.wte", "transformer.wpe"),
        unembedding="lm_head",
        attention="attn",
        attention_out="attn.c_proj",
        mlp_out="mlp.c_proj",
        qkv=("attn.c_attn",),
        weight_layout="in_out",
        eps_field="layer_norm_epsilon",
    ),
    Family(
        model_type="llama",
        blocks="model.layers",
        norms=(
            BlockNorm(
                "input_layernorm",
                Role.PRE_ATTN,
                ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            ),
            BlockNorm("post_attention_layernorm", Role.PRE_MLP, ("mlp.gate_proj", "mlp.up_proj")),
        ),
        final_norm="model.norm",
        embeddings=("model.embed_tokens",),
        unembedding="lm_head",
        attention="self_attn",
        attention_out="self_attn.o_proj",
        mlp_out="mlp.down_proj",
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        weight_layout="out_in",
        eps_field="rms_norm_eps",
        kv_heads="num_key_value_heads",
    ),
)

SUPPORTED = tuple(family.model_type for family in FAMILIES)


def family_of(model: PreTrainedModel) -> Family:
    """The row for a model, by ``config.model_type``.

    Raises:
        LoadError: there is no row for that model type.
    """
    return family_named(model.config.model_type)


def family_named(model_type: str) -> Family:
    """The row for a model type.

    Raises:
        LoadError: there is none.
    """
    for family in FAMILIES:
        if family.model_type == model_type:
            return family
    raise LoadError(
        f"model type {model_type!r} is not supported; supported: {', '.join(SUPPORTED)}"
    )
