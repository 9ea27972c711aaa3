"""What a component view is: modules to hook, weights to project with, one tree to run.

    r = sum(embeddings) + sum over layers of ( sum_h z_h W_O[h] + b_O + mlp )
    logits = final_norm(r) W_U + b_U

Every term but the last line's norm is the output of a module that can be hooked. The
weights are views on those of the opened model: nothing is folded, centred or copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from normlens.models.lens import NormSite


@dataclass(frozen=True, eq=False)
class LayerParts:
    """The parts of one block. Hook them with :class:`normlens.hooks.Hook`.

    Attributes:
        block: its *input* is the residual before the block, ``[batch pos d_model]``.
        out_projection: its *input* is ``z [batch pos head*d_head]``, the heads' values mixed
            by their patterns, one slot per query head; its *output* is
            ``sum_h z_h W_O[h] + b_O``.
        attention_output: its *output* is what attention adds to the residual: the
            out-projection itself, or the norm after it where the family has one.
        mlp_output: its *output* is what the MLP adds, likewise ``[batch pos d_model]``.
        pattern: its *output* is the attention pattern ``[batch head query key]``; None
            unless the view was made with ``patterns=True``.
        W_O: ``[head d_head d_model]``.
        b_O: ``[d_model]``, None where the projection has no bias.
    """

    block: nn.Module
    out_projection: nn.Module
    attention_output: nn.Module
    mlp_output: nn.Module
    pattern: nn.Module | None
    W_O: Float[Tensor, "head d_head d_model"]
    b_O: Float[Tensor, " d_model"] | None


@dataclass(frozen=True, eq=False)
class ComponentView:
    """A second module tree over the weights of a Lens, in which components have names.

    Run it with :func:`forward`; the model of the Lens stays as it was.

    Attributes:
        bridge: the TransformerLens bridge; hand it to :func:`normlens.hooks.hooked`. Its own
            hook points fire only in a view made with ``patterns=True``; hook the parts.
        layers: the parts of each block.
        embeddings: modules whose *outputs* sum to the residual before block 0: token and
            position embedding, or the norm that follows them. A position embedding may
            have a batch axis of 1.
        final_norm: its *input* is the final residual ``r``.
        W_U: ``[d_model d_vocab]``.
        b_U: ``[d_vocab]``, None where the unembedding has no bias.
        n_heads: query heads per layer.
        d_head: width of one head.
        sites: the module that computes each norm site, by the site's path.
    """

    bridge: nn.Module
    layers: tuple[LayerParts, ...]
    embeddings: tuple[nn.Module, ...]
    final_norm: nn.Module
    W_U: Float[Tensor, "d_model d_vocab"]
    b_U: Float[Tensor, " d_vocab"] | None
    n_heads: int
    d_head: int
    sites: Mapping[str, nn.Module]

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
        logits: whether logits are wanted; without them only the last position is
            projected on the vocabulary, which saves most of the unembedding.

    Returns:
        The logits, or None when they were not asked for.
    """
    options: dict[str, Any] = {} if logits else {"logits_to_keep": 1}
    out = view.bridge(
        input_ids,
        attention_mask=attention_mask,
        return_type="logits",
        use_cache=False,
        **options,
    )
    return out if logits else None
