"""Boot TransformerLens on a structural copy, so that the caller's model stays as it is.

1. Copy the module tree and the config; parameters and buffers are shared, not copied.
2. Let TransformerLens replace modules of the copy by its bridge components.
3. Have each norm computed by its own module: the bridge would otherwise recompute it as
   a LayerNorm with the config's eps, which is wrong for every norm that is not one.
4. Unless attention patterns are wanted, put the model's own modules back. The bridge has
   told which module is which component, and that is all it is needed for: its rewrite of
   attention materialises every pattern, and its norms compute statistics nobody reads.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from normlens.errors import NotApplicable
from normlens.hooks import model_lock
from normlens.models.copying import structural_copy


def twin_of(model: PreTrainedModel) -> PreTrainedModel:
    """A structural copy in eval mode, without the hooks that ``model`` has at this moment."""
    with model_lock(model):
        twin = structural_copy(model)
    for module in twin.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return twin.eval()


def boot_bridge(twin: PreTrainedModel, *, patterns: bool, native_norms: bool = True) -> nn.Module:
    """Boot TransformerLens on ``twin``, which is changed in place; no network, no tokenizer.

    Args:
        twin: what :func:`twin_of` returned.
        patterns: whether attention patterns will be read; the bridge's components then run
            in place of the modules they wrap, and attention is eager.
        native_norms: whether the bridge's components leave norms to the modules they wrap.
            Off, every norm that is not a LayerNorm with the config's eps comes out wrong.

    Raises:
        NotApplicable: TransformerLens does not know the architecture.
    """
    from transformer_lens.model_bridge import NormalizationBridge
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    architecture = _architecture(twin)
    if patterns:
        twin.set_attn_implementation("eager")
    # Splitting fused projections initialises linears at random before it fills them.
    with torch.random.fork_rng(devices=[]):
        bridge = build_bridge_from_module(twin, architecture, hf_config=twin.config)
    for module in bridge.modules():
        if isinstance(module, NormalizationBridge):
            module.use_native_layernorm_autograd = native_norms
    # nn.Module's own walk: the bridge's leaves out the projections it split.
    for parameter in nn.Module.parameters(bridge):
        parameter.requires_grad_(False)
    if not patterns:
        _restore_modules(twin)
    return bridge


def _architecture(model: PreTrainedModel) -> str:
    from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
    from transformer_lens.model_bridge.sources.transformers import (
        determine_architecture_from_hf_config,
    )

    try:
        architecture = determine_architecture_from_hf_config(model.config)
    except ValueError:
        architecture = type(model).__name__
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise NotApplicable(
            f"no component view of {architecture}: TransformerLens does not know this "
            "architecture; analyses that need no components still apply"
        )
    return architecture


def _restore_modules(parent: nn.Module) -> None:
    from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

    for name, child in list(parent.named_children()):
        if isinstance(child, GeneralizedComponent):
            native = child.original_component
            assert native is not None
            # The list of blocks is the bridge's own: its wrappers stay, what they wrap runs.
            if not isinstance(parent, nn.ModuleList):
                setattr(parent, name, native)
            child = native
        _restore_modules(child)
