"""The copy of a model that a component view runs, and TransformerLens booted on it.

Parameters and buffers are shared, so the caller's model stays as it is. TransformerLens is
needed for attention patterns alone: it is booted on the copy, whose modules it replaces by
components of its own that materialise every pattern. Each norm is then computed by its own
module: the bridge would otherwise recompute it as a LayerNorm with the config's eps, which
is wrong for every norm that is not one.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def boot_bridge(twin: PreTrainedModel, *, native_norms: bool = True) -> nn.Module:
    """Boot TransformerLens on ``twin``, which is changed in place; no network, no tokenizer.

    Args:
        twin: what :func:`twin_of` returned; its attention becomes eager.
        native_norms: whether the bridge's components leave norms to the modules they wrap.
            Off, every norm that is not a LayerNorm with the config's eps comes out wrong.

    Raises:
        NotApplicable: TransformerLens does not know the architecture, or fails on it.
    """
    from transformer_lens.model_bridge import NormalizationBridge
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    architecture = _architecture(twin)
    twin.set_attn_implementation("eager")
    # Splitting fused projections initialises linears at random before it fills them.
    with torch.random.fork_rng(devices=[]):
        try:
            bridge = build_bridge_from_module(twin, architecture, hf_config=twin.config)
        except Exception as error:  # its adapters raise nearly anything on unusual layouts
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise NotApplicable(
                f"no attention patterns of {architecture}: TransformerLens cannot take this "
                f"layout apart ({reason}); a component view without patterns still applies"
            ) from error
    for module in bridge.modules():
        if isinstance(module, NormalizationBridge):
            module.use_native_layernorm_autograd = native_norms
    # nn.Module's own walk: the bridge's leaves out the projections it split.
    for parameter in nn.Module.parameters(bridge):
        parameter.requires_grad_(False)
    return bridge


def pattern_points(bridge: nn.Module) -> tuple[nn.Module, ...]:
    """The modules whose outputs are the attention patterns, one per block.

    Raises:
        NotApplicable: the bridge has no such hook points.
    """
    try:
        blocks = list(bridge.get_submodule("blocks").children())
        return tuple(block.get_submodule("attn.hook_pattern") for block in blocks)
    except AttributeError as error:
        raise NotApplicable(
            "no attention patterns: TransformerLens has none for this architecture"
        ) from error


def running_norms(bridge: nn.Module, norms: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The wrapper of each norm: it runs even where it skips what it wraps (Identity)."""
    from transformer_lens.model_bridge import NormalizationBridge

    wrappers = {
        id(module.original_component): module
        for module in bridge.modules()
        if isinstance(module, NormalizationBridge)
    }
    return {path: wrappers.get(id(norm), norm) for path, norm in norms.items()}


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
            f"no attention patterns of {architecture}: TransformerLens does not know this "
            "architecture; a component view without patterns still applies"
        )
    return architecture
