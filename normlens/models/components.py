"""The component view: heads, MLPs, embeddings and projections of an opened model.

1. Copy the model's module tree; all tensors are shared (``components_boot``).
2. Boot TransformerLens on the copy, norms computed by their own modules.
3. Locate the parts (``components_locate``) and collect them (``components_view``).
4. Check that the view and the model give the same log-probabilities (``components_guard``).

The model of the Lens keeps its keys, attention implementation, hooks and
``save_pretrained``. A view costs some seconds for the first import of TransformerLens and
next to no memory; keep it as long as the Lens.
"""

from __future__ import annotations

from normlens.models.components_boot import boot_bridge, twin_of
from normlens.models.components_guard import verify_components
from normlens.models.components_locate import locate
from normlens.models.components_view import ComponentView, LayerParts, forward
from normlens.models.lens import Lens

__all__ = ["ComponentView", "LayerParts", "component_view", "forward"]


def component_view(lens: Lens, *, patterns: bool = False) -> ComponentView:
    """Build and verify the component view of an opened model.

    Args:
        lens: the opened model; it is not changed.
        patterns: whether attention patterns will be read. Without them the model's own
            modules run, attention kernel included: as fast as the model and equal to it bit
            for bit. With them every layer materialises ``[batch head query key]``.

    Raises:
        NotApplicable: TransformerLens does not know the architecture or finds no such parts.
        UsageError: the model is in training mode.
        ComponentMismatch: the view's log-probabilities differ from the model's.
    """
    twin = twin_of(lens.model)
    norms = {site.path: twin.get_submodule(site.path) for site in lens.sites}
    bridge = boot_bridge(twin, patterns=patterns)
    view = locate(bridge, lens.model, norms, patterns=patterns)
    verify_components(lens, view)
    return view
