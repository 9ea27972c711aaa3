"""One forward pass, reduced to what was asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normlens.capture.collector import ComponentCollector
from normlens.capture.protocol import Observed
from normlens.catalog.declaration import Need
from normlens.hooks import Hook, hooked
from normlens.models.components import ComponentView, forward
from normlens.models.lens import Lens, NormSite
from normlens.text.sequences import Batch


@dataclass(frozen=True)
class Tree:
    """What a pass runs: the plain model, or its component view.

    Attributes:
        root: the module hooks are counted and locked on.
        lens: whose model it is.
        view: the component view, or None for the plain model.
    """

    root: nn.Module
    lens: Lens
    view: ComponentView | None = None

    def site_module(self, site: NormSite) -> nn.Module:
        """The module that computes a site in this tree."""
        return self.lens.module(site) if self.view is None else self.view.site_module(site)


def plain_tree(lens: Lens) -> Tree:
    """The model as it was opened."""
    return Tree(lens.model, lens)


def component_tree(view: ComponentView, lens: Lens) -> Tree:
    """The component view of the model."""
    return Tree(view.bridge, lens, view)


@torch.inference_mode()
def observe(tree: Tree, batch: Batch, needs: frozenset[Need]) -> Observed:
    """Run one batch and keep only what ``needs`` names.

    No attention mask is passed: the models are causal and padding is on the right, so no
    real token can see it.

    Raises:
        HookMismatch: a hook did not fire exactly once.
    """
    hooks: list[Hook] = []
    moments: dict[str, Tensor] = {}
    if Need.NORM_MOMENTS in needs:
        sites = tree.lens.sites
        # Allocated before the pass: small tensors made during it would split the gaps that
        # activations leave, and the heap would grow by an activation per site.
        dtype = torch.promote_types(tree.lens.model.dtype, torch.float32)
        shape = (len(sites), 2, *batch.ids.shape)
        for site, into in zip(
            sites, torch.empty(shape, dtype=dtype, device=batch.ids.device), strict=True
        ):
            moments[site.label] = into
            hooks.append(Hook(tree.site_module(site), "input", _RecordMoments(into), site.label))
    collector = (
        ComponentCollector(tree.view)
        if tree.view is not None and Need.COMPONENTS in needs
        else None
    )
    if collector is not None:
        hooks.extend(collector.hooks)
    with hooked(tree.root, hooks):
        logits = run_model(tree, batch.ids, logits=Need.LOGITS in needs)
    return Observed(moments, logits, collector.components() if collector else None)


def run_model(tree: Tree, ids: Tensor, *, logits: bool) -> Tensor | None:
    """Logits ``[batch pos vocab]``, or None after running the backbone alone."""
    if tree.view is not None:
        return forward(tree.view, ids, logits=logits)
    model = tree.lens.model
    if logits:
        return model(input_ids=ids, use_cache=False).logits
    model.base_model(input_ids=ids, use_cache=False)
    return None


def input_moments(x: Float[Tensor, "*batch width"]) -> Float[Tensor, "2 ..."]:
    """Mean and biased variance over the last axis, at least float32."""
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    variance, mean = torch.var_mean(x, -1, correction=0)
    return torch.stack([mean, variance])


@dataclass(frozen=True)
class _RecordMoments:
    into: Tensor

    def __call__(self, x: Tensor) -> None:
        self.into.copy_(input_moments(x))
