"""What a component view is: modules to hook, weights to project with, one tree to run.

    attn = sum_h z_h W_O[h] + b_O
    attn = centre(attn) / scale(attn) * gamma + beta          where a norm follows attention
    attn = learned factor * attn                              where the branch has one
    r    = embed + pos_embed + sum over layers of branch_scale * (attn + mlp)
    raw  = final_norm(r) W_U + b_U
    logits = softcap * tanh(logit_scale * raw / softcap)      raw itself in most models

The weights are views on those of the opened model: nothing is folded, centred or copied.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from normlens.models.components_scaling import Scaling
from normlens.models.lens import NormSite
from normlens.norms import NormSpec
from normlens.norms.reference import centre, scale_of


@dataclass(frozen=True, eq=False)
class PostAttention:
    """The norm between a block's attention and the residual, and any factor on its output.

    Attributes:
        spec: what the norm computes; its scale depends on the attention's output as a whole.
            An identity where there is a factor alone.
        gamma, beta: effective gain and bias times the factors, float64 ``[d_model]``, or None.
    """

    spec: NormSpec
    gamma: Float[Tensor, " d_model"] | None
    beta: Float[Tensor, " d_model"] | None

    def scale(self, attention: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos"]:
        """The denominator for the whole output of attention, at least float32.

        Raises:
            ValueError: the norm is opaque.
        """
        wide = attention.to(torch.promote_types(attention.dtype, torch.float32))
        return scale_of(self.spec, centre(self.spec, wide))[..., 0]

    def linear(self, written: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """``centre(written) * gamma``: the norm's linear part, without scale and bias."""
        centred = centre(self.spec, written)
        return centred if self.gamma is None else centred * self.gamma.to(written.dtype)


@dataclass(frozen=True, eq=False)
class LayerParts:
    """The parts of one block. Hook them with :class:`normlens.hooks.Hook`.

    What attention and MLP add to the residual is their output times the view's
    ``scaling.branch``. A model may change an output in place once it has been made:
    copy what has to outlive the block.

    Attributes:
        block: its *input* is the residual before the block, ``[batch pos d_model]``.
        out_projection: its *input* is ``z [batch pos head*d_head]``, the heads' values mixed
            by their patterns and, where a norm stands before the projection, normalised; one
            slot per query head. Its *output* is ``sum_h z_h W_O[h] + b_O``.
        attention_output: its *output* is that of attention: the out-projection itself, or
            what comes last of the norm after it and the learned factor on that.
        mlp_output: its *output* is that of the MLP, likewise ``[batch pos d_model]``.
        pattern: its *output* is the attention pattern ``[batch head query key]``; None
            unless the view was made with ``patterns=True``.
        W_O: ``[head d_head d_model]``.
        b_O: ``[d_model]``, None where the projection has no bias.
        post_attention: norm and factor after the out-projection, None where neither is.
    """

    block: nn.Module
    out_projection: nn.Module
    attention_output: nn.Module
    mlp_output: nn.Module
    pattern: nn.Module | None
    W_O: Float[Tensor, "head d_head d_model"]
    b_O: Float[Tensor, " d_model"] | None
    post_attention: PostAttention | None = None


@dataclass(frozen=True, eq=False)
class ComponentView:
    """A second module tree over the weights of a Lens, in which components have names.

    Run it with :func:`forward`; the model of the Lens stays as it was.

    Attributes:
        bridge: the tree that runs, to be handed to :func:`normlens.hooks.hooked`: a copy of
            the model that shares its weights. In a view made with ``patterns=True``
            TransformerLens's components stand in it in place of the modules they wrap.
        layers: the parts of each block.
        position_embedding: its *output* is the position's part of the residual before block
            0, perhaps with a batch axis of 1; the rest of that residual is the token's
            part. None where positions are not embedded, or embeddings are normalised as a
            sum.
        final_norm: its *input* is the final residual ``r``.
        unembedding: its *output* are the raw logits.
        W_U: ``[d_model d_vocab]``.
        b_U: ``[d_vocab]``, None where the unembedding has no bias.
        n_heads: query heads per layer.
        d_head: width of one head.
        sites: the module that computes each norm site, by the site's path.
        scaling: the constants that branches and logits are multiplied by.
    """

    bridge: PreTrainedModel
    layers: tuple[LayerParts, ...]
    position_embedding: nn.Module | None
    final_norm: nn.Module
    unembedding: nn.Module
    W_U: Float[Tensor, "d_model d_vocab"]
    b_U: Float[Tensor, " d_vocab"] | None
    n_heads: int
    d_head: int
    sites: Mapping[str, nn.Module]
    scaling: Scaling

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return len(self.layers)

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.W_U.shape[0]

    @property
    def d_vocab(self) -> int:
        """Number of logits."""
        return self.W_U.shape[1]

    def W_O(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        """Output weights of one layer's heads."""
        return self.layers[layer].W_O

    def b_O(self, layer: int) -> Float[Tensor, " d_model"] | None:
        """Output bias of one layer's attention; it belongs to no head."""
        return self.layers[layer].b_O

    def site_module(self, site: NormSite) -> nn.Module:
        """The module of this tree whose input and output are those of ``site``."""
        return self.sites[site.path]


def forward(
    view: ComponentView,
    input_ids: Int[Tensor, "batch pos"],
    attention_mask: Int[Tensor, "batch pos"] | None = None,
    *,
    logits: bool = True,
) -> Float[Tensor, "batch pos d_vocab"] | None:
    """Run the view once.

    Rows padded on the right keep the positions 0, 1, ...; rows padded on the left count
    them from their first real token. Outputs at padding are meaningless.

    Args:
        view: what to run.
        input_ids: token ids.
        attention_mask: 1 for a token, 0 for padding; None where nothing is padded.
        logits: whether logits are wanted; without them the unembedding does not run.

    Returns:
        The logits of the model, or None when they were not asked for.
    """
    run: Any = view.bridge if logits else view.bridge.base_model
    out = run(
        input_ids=input_ids,
        attention_mask=attention_mask,
        use_cache=False,
        **_positions(view.bridge, attention_mask),
    )
    return out.logits if logits else None


def _positions(
    model: PreTrainedModel, mask: Int[Tensor, "batch pos"] | None
) -> dict[str, Int[Tensor, "batch pos"]]:
    """Positions to pass on: none unless a row is padded on the left.

    Models that take no positions derive them from the mask or know only distances.
    """
    if mask is None or bool(mask[:, 0].all()):
        return {}
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return {}
    return {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
