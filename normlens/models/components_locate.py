"""Find the parts of a booted bridge: the one place that knows TransformerLens's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from normlens.errors import NotApplicable
from normlens.models.components_view import ComponentView, LayerParts


def locate(
    bridge: nn.Module,
    model: PreTrainedModel,
    norms: Mapping[str, nn.Module],
    *,
    patterns: bool,
) -> ComponentView:
    """Collect modules and weights into a view.

    Args:
        bridge: booted on a structural copy of ``model``.
        model: the opened model, from which the unembedding is taken.
        norms: the copy's norm modules by path, resolved before booting.
        patterns: whether attention patterns will be read.

    Raises:
        NotApplicable: the architecture lacks one of the parts.
    """
    blocks = _part(bridge, "blocks")
    config: Any = bridge.cfg
    n_heads, d_head = int(config.n_heads), int(config.d_head)
    unembedding = model.get_output_embeddings()
    if not isinstance(unembedding, nn.Linear):
        raise NotApplicable(f"no component view: {type(model).__name__} has no linear unembedding")
    return ComponentView(
        bridge=bridge,
        layers=tuple(_layer(b, n_heads, d_head, patterns) for b in blocks.children()),
        embeddings=_embeddings(bridge),
        final_norm=_optional(bridge, "ln_final"),
        W_U=unembedding.weight.detach().T,
        b_U=None if unembedding.bias is None else unembedding.bias.detach(),
        n_heads=n_heads,
        d_head=d_head,
        sites=_sites(bridge, norms),
    )


def _layer(block: nn.Module, n_heads: int, d_head: int, patterns: bool) -> LayerParts:
    # The linear itself: it runs whether attention is the bridge's or the model's own.
    out_projection = _part(block, "attn.o._original_component")
    weight, bias = _weights(out_projection)
    return LayerParts(
        block=block,
        out_projection=out_projection,
        attention_output=_optional(block, "ln1_post") or out_projection,
        mlp_output=_optional(block, "ln2_post") or _part(block, "mlp"),
        pattern=_part(block, "attn.hook_pattern") if patterns else None,
        W_O=weight.unflatten(0, (n_heads, d_head)),
        b_O=bias,
    )


def _weights(linear: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight ``[in out]`` and bias of a linear."""
    if isinstance(linear, Conv1D):
        return linear.weight.detach(), linear.bias.detach()
    if isinstance(linear, nn.Linear):
        bias = None if linear.bias is None else linear.bias.detach()
        return linear.weight.detach().T, bias
    raise NotApplicable(
        f"no component view: the attention output is a {type(linear).__name__}, not a linear; "
        "open the model unquantised"
    )


def _embeddings(bridge: nn.Module) -> tuple[nn.Module, ...]:
    norm = _optional(bridge, "embed_ln")
    if norm is not None:
        return (norm,)
    position = _optional(bridge, "pos_embed")
    token = _part(bridge, "embed")
    return (token,) if position is None else (token, position)


def _sites(bridge: nn.Module, norms: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The wrapper of each norm, which also runs where the bridge skips the module (Identity)."""
    from transformer_lens.model_bridge import NormalizationBridge

    wrappers = {
        id(module.original_component): module
        for module in bridge.modules()
        if isinstance(module, NormalizationBridge)
    }
    return {path: wrappers.get(id(norm), norm) for path, norm in norms.items()}


def _part(module: nn.Module, path: str) -> nn.Module:
    part = _optional(module, path)
    if part is None:
        raise NotApplicable(
            f"no component view: TransformerLens finds no '{path}' in this architecture"
        )
    return part


def _optional(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None
