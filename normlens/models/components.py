"""The component view: heads, MLPs, embeddings and projections of an opened model.

1. Copy the model's module tree; all tensors are shared (``components_boot``).
2. Find the parts by the row of the model's family (``components_locate``), and the
   constants it multiplies branches and logits by (``components_scaling``).
3. Where attention patterns are wanted, boot TransformerLens on the copy.
4. Check that the view and the model give the same log-probabilities, and that components
   add up to the residual and the logits (``components_guard``).

The model of the Lens keeps its keys, attention implementation, hooks and
``save_pretrained``. A view costs next to no memory; with patterns it costs some seconds for
the first import of TransformerLens. Keep it as long as the Lens.
"""

from __future__ import annotations

from normlens.models.components_boot import boot_bridge, pattern_points, running_norms, twin_of
from normlens.models.components_guard import verify_components
from normlens.models.components_locate import anatomy, assemble
from normlens.models.components_view import ComponentView, LayerParts, forward
from normlens.models.lens import Lens

__all__ = ["ComponentView", "LayerParts", "component_view", "forward"]


def component_view(lens: Lens, *, patterns: bool = False) -> ComponentView:
    """Build and verify the component view of an opened model.

    Args:
        lens: the opened model; it is not changed.
        patterns: whether attention patterns will be read. Without them the model's own
            modules run, attention kernel included: as fast as the model and equal to it bit
            for bit. With them TransformerLens's components run, and every layer
            materialises ``[batch head query key]``.

    Raises:
        NotApplicable: the model is no sum of components, or TransformerLens has no patterns
            of its architecture.
        UsageError: the model is in training mode.
        ComponentMismatch: the view's log-probabilities differ from the model's, or its
            components do not add up.
    """
    view = build_view(lens, patterns=patterns)
    verify_components(lens, view)
    return view


def build_view(lens: Lens, *, patterns: bool, native_norms: bool = True) -> ComponentView:
    """The view before its guard has seen it.

    Args:
        lens: the opened model.
        patterns: as in :func:`component_view`.
        native_norms: as in :func:`~normlens.models.components_boot.boot_bridge`.

    Raises:
        NotApplicable: as in :func:`component_view`.
    """
    twin = twin_of(lens.model)
    parts = anatomy(twin, lens)
    if not patterns:
        return assemble(lens, twin, parts, parts.norms)
    bridge = boot_bridge(twin, native_norms=native_norms)
    return assemble(lens, twin, parts, running_norms(bridge, parts.norms), pattern_points(bridge))
