"""What a row about a family of architectures says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from normlens.models.lens import Layout, Role


@dataclass(frozen=True)
class NormRule:
    """A norm of every block, or one outside the blocks.

    Attributes:
        attribute: module path inside the block, or inside the model.
        role: where it sits.
        feeds: module paths, likewise, of the linears that read its output.
        optional: whether a model of the family may lack it; it exists iff the module does.
        layout: the axes of its input before the normalised one.
        on_stream: whether its output becomes the residual stream (post-LN, embedding
            norms) instead of being read by a branch or added to the stream.
    """

    attribute: str
    role: Role
    feeds: tuple[str, ...] = ()
    optional: bool = False
    layout: Layout = Layout.BATCH_POS
    on_stream: bool = False


@dataclass(frozen=True)
class Family:
    """One architecture: a family, or one of the layouts a family comes in.

    Attributes:
        model_type: ``config.model_type``.
        blocks: path of the module list of blocks.
        norms: norms of a block.
        final_norm: path of the norm between the residual stream and the unembedding, None
            where there is none.
        embeddings: paths of the modules whose outputs add up to what enters the first
            block, or the norm on the embeddings (OPT-350m projects the first one).
        unembedding: path of the linear that makes the logits, None for a bare encoder.
        attention: path of the attention module inside a block.
        attention_out: path inside a block of the linear that makes attention's output.
        mlp_out: path inside a block of the linear that makes the MLP's output.
        qkv: paths inside a block of the linears that make queries, keys and values: three,
            or one where they are fused.
        eps_field: config field that sets the eps of new norms, None where there is none;
            never read, only written where an edit must leave a config that describes the
            edited model.
        fused_qkv: where queries, keys and values come from one linear, the order of its
            outputs: ``blocks`` for all queries, all keys, all values; ``groups`` for the
            queries, key and value of one key-value head after the other.
        weight_layout: ``in_out`` where a linear's weight is ``[in, out]`` (GPT-2's
            Conv1D), ``out_in`` for ``torch.nn.Linear``. The unembedding is always out_in.
        kv_heads: config field with the number of key-value heads or that number itself,
            None where every query head has its own.
        outer_norms: norms outside the blocks other than the final one.
        parallel: whether attention and MLP of a block read the same residual stream.
        causal: whether a token sees only itself and what precedes it; an encoder sees all
            and must be given the attention mask.
        context: config field with the longest sequence, None where no position is encoded
            in a way that ends (ALiBi).
        attention_rule: config field that names what turns attention logits into weights, None
            where it is always softmax.
        branch_scales: paths inside a block of the modules that multiply what attention and MLP
            add by a learned number; a model of the family may lack them.
        when: config fields and the values they must have for the row to hold.
        model_class: name of the Hugging Face class for which alone the row holds.
    """

    model_type: str
    blocks: str
    norms: tuple[NormRule, ...]
    final_norm: str | None
    embeddings: tuple[str, ...]
    unembedding: str | None
    attention: str
    attention_out: str
    mlp_out: str
    qkv: tuple[str, ...]
    eps_field: str | None
    fused_qkv: Literal["blocks", "groups"] | None = None
    weight_layout: Literal["in_out", "out_in"] = "out_in"
    kv_heads: str | int | None = None
    outer_norms: tuple[NormRule, ...] = ()
    parallel: bool = False
    causal: bool = True
    context: str | None = "max_position_embeddings"
    attention_rule: str | None = None
    branch_scales: tuple[str, str] | None = None
    when: tuple[tuple[str, object], ...] = ()
    model_class: str | None = None
