"""What a pass runs: the plain model, or its component view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from normlens.models.blocks import block_modules
from normlens.models.components import ComponentView, forward
from normlens.models.families import family_of
from normlens.models.lens import Lens, NormSite
from normlens.text.sequences import Batch


@dataclass(frozen=True)
class Tree:
    """One module tree over the weights of a model.

    Attributes:
        root: the module hooks are counted and locked on.
        lens: whose model it is.
        view: the component view, or None for the plain model.
    """

    root: nn.Module
    lens: Lens
    view: ComponentView | None = None

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks in order; the input of each is the residual stream before it."""
        if self.view is None:
            return block_modules(self.lens.model)
        return [layer.block for layer in self.view.layers]

    def site_module(self, site: NormSite) -> nn.Module:
        """The module that computes a site in this tree."""
        return self.lens.module(site) if self.view is None else self.view.site_module(site)


def plain_tree(lens: Lens) -> Tree:
    """The model as it was opened."""
    return Tree(lens.model, lens)


def component_tree(view: ComponentView, lens: Lens) -> Tree:
    """The component view of the model."""
    return Tree(view.bridge, lens, view)


def run_model(tree: Tree, batch: Batch, *, logits: bool) -> Tensor | None:
    """Logits ``[batch pos vocab]``, or None after running the backbone alone."""
    if tree.view is not None:
        return forward(tree.view, batch.ids, logits=logits)
    model = tree.lens.model
    # Padding is on the right, where a causal model cannot see it.
    causal = family_of(model).causal
    mask = None if causal else batch.mask.long()
    # The head of an encoder may have a norm of its own, so it runs whole.
    run = model if logits or not causal else model.base_model
    out = run(input_ids=batch.ids, attention_mask=mask, use_cache=False)
    return out.logits if logits else None
