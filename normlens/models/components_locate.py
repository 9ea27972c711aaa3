"""Find the parts of a booted bridge: the one place that knows TransformerLens's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
        patterns: what ``bridge`` was booted with: whether its components run or the
            modules they wrap.

    Raises:
        NotApplicable: the architecture lacks one of the parts.
    """
    find = _Finder(wrapped=patterns)
    config: Any = bridge.cfg
    n_heads, d_head = int(config.n_heads), int(config.d_head)
    unembedding = model.get_output_embeddings()
    if not isinstance(unembedding, nn.Linear):
        raise NotApplicable(f"no component view: {type(model).__name__} has no linear unembedding")
    return ComponentView(
        bridge=bridge,
        layers=tuple(
            _layer(find, block, n_heads, d_head) for block in _part(bridge, "blocks").children()
        ),
        embeddings=_embeddings(find, bridge),
        final_norm=find.required(bridge, "ln_final"),
        W_U=unembedding.weight.detach().T,
        b_U=None if unembedding.bias is None else unembedding.bias.detach(),
        n_heads=n_heads,
        d_head=d_head,
        sites=_wrappers(bridge, norms) if patterns else dict(norms),
    )


@dataclass(frozen=True)
class _Finder:
    """Finds the module that runs for a component: the bridge's wrapper or what it wraps."""

    wrapped: bool

    def optional(self, parent: nn.Module, path: str) -> nn.Module | None:
        module = _optional(parent, path)
        return None if module is None else self.running(module)

    def required(self, parent: nn.Module, path: str) -> nn.Module:
        return self.running(_part(parent, path))

    def running(self, wrapper: nn.Module) -> nn.Module:
        return wrapper if self.wrapped else _part(wrapper, "_original_component")


def _layer(find: _Finder, block: nn.Module, n_heads: int, d_head: int) -> LayerParts:
    # The linear inside the wrapper runs in either case; the wrapper itself need not.
    out_projection = _part(block, "attn.o._original_component")
    weight, bias = _weights(out_projection)
    return LayerParts(
        block=block,
        out_projection=out_projection,
        attention_output=find.optional(block, "ln1_post") or out_projection,
        mlp_output=find.optional(block, "ln2_post") or _mlp(find, block),
        pattern=_part(block, "attn.hook_pattern") if find.wrapped else None,
        W_O=weight.unflatten(0, (n_heads, d_head)),
        b_O=bias,
    )


def _mlp(find: _Finder, block: nn.Module) -> nn.Module:
    from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

    mlp = _part(block, "mlp")
    if isinstance(mlp, GeneralizedComponent) and mlp.name is None:
        # The block holds the MLP's linears itself: there is no module around them.
        return find.required(mlp, "out")
    return find.running(mlp)


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


def _embeddings(find: _Finder, bridge: nn.Module) -> tuple[nn.Module, ...]:
    norm = find.optional(bridge, "embed_ln")
    if norm is not None:
        return (norm,)
    position = find.optional(bridge, "pos_embed")
    token = find.required(bridge, "embed")
    return (token,) if position is None else (token, position)


def _wrappers(bridge: nn.Module, norms: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The wrapper of each norm: it runs even where it skips what it wraps (Identity)."""
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
