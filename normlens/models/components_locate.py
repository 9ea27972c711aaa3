"""Find the components of a model by the row of its family and the sites of its Lens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from normlens.decoder.combine import LearnedScale
from normlens.errors import NotApplicable
from normlens.models.components_scaling import scaling_of
from normlens.models.components_view import ComponentView, LayerParts, PostAttention
from normlens.models.families import Family, family_of
from normlens.models.lens import Lens, NormSite, Role
from normlens.models.parameters import gain_and_bias
from normlens.norms import NormKind, NormSpec


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The modules of a twin by what they are, resolved before anything replaces one.

    Attributes:
        family: the row they were found by.
        out_projections, mlp_outs: of each block, the linears that write into the residual.
        position_embedding: None where positions are not embedded, or not seen apart.
        unembedding: the linear that makes the raw logits.
        norms: the norms by path.
    """

    family: Family
    out_projections: tuple[nn.Module, ...]
    mlp_outs: tuple[nn.Module, ...]
    position_embedding: nn.Module | None
    unembedding: nn.Linear
    norms: Mapping[str, nn.Module]


def anatomy(twin: PreTrainedModel, lens: Lens) -> Anatomy:
    """Resolve the modules of a copy of the model of ``lens``.

    Raises:
        NotApplicable: norms stand on the residual stream (post-LN), there is no final norm,
            or the unembedding is no linear: then no output is a sum of components.
    """
    family, name = family_of(twin), lens.identity.name
    on_stream = [s for s in lens.sites if s.on_stream and s.spec.kind is not NormKind.IDENTITY]
    if any(site.layer is not None for site in on_stream):
        raise NotApplicable(
            f"no component view of {name}: its norms stand on the residual stream and rescale "
            "all that was added before, so no output is a sum of components"
        )
    if family.final_norm is None:
        raise NotApplicable(
            f"no component view of {name}: no norm stands between its residual stream and the "
            "unembedding, through which contributions would be read"
        )
    unembedding = twin.get_output_embeddings()
    if not isinstance(unembedding, nn.Linear):
        raise NotApplicable(f"no component view of {name}: it has no linear unembedding")
    blocks = list(twin.get_submodule(family.blocks).children())
    # A norm on their sum leaves no part of it to the position alone.
    positions = () if on_stream else family.embeddings[1:]
    return Anatomy(
        family=family,
        out_projections=tuple(block.get_submodule(family.attention_out) for block in blocks),
        mlp_outs=tuple(block.get_submodule(family.mlp_out) for block in blocks),
        position_embedding=twin.get_submodule(positions[0]) if positions else None,
        unembedding=unembedding,
        norms={site.path: twin.get_submodule(site.path) for site in lens.sites},
    )


def assemble(
    lens: Lens,
    twin: PreTrainedModel,
    parts: Anatomy,
    sites: Mapping[str, nn.Module],
    patterns: tuple[nn.Module, ...] | None = None,
) -> ComponentView:
    """Put modules and weights together.

    Args:
        lens: the opened model.
        twin: the copy that runs.
        parts: its modules.
        sites: the module that runs for each norm, by path.
        patterns: modules whose output is each layer's attention pattern, where wanted.

    Raises:
        NotApplicable: the attention output is no linear, or the norm after it has no scale
            that is known, such as DyT's.
    """
    blocks = tuple(twin.get_submodule(parts.family.blocks).children())
    final = next(site for site in lens.sites if site.role is Role.FINAL)
    n_heads = int(twin.config.num_attention_heads)
    layers = tuple(
        _layer(lens, parts, sites, index, block, n_heads, patterns[index] if patterns else None)
        for index, block in enumerate(blocks)
    )
    bias = parts.unembedding.bias
    return ComponentView(
        bridge=twin,
        layers=layers,
        position_embedding=parts.position_embedding,
        final_norm=sites[final.path],
        unembedding=parts.unembedding,
        W_U=parts.unembedding.weight.detach().T,
        b_U=None if bias is None else bias.detach(),
        n_heads=n_heads,
        d_head=layers[0].W_O.shape[1],
        sites=sites,
        scaling=scaling_of(lens.model, lens.model.get_submodule(f"{parts.family.blocks}.0")),
    )


def _layer(
    lens: Lens,
    parts: Anatomy,
    sites: Mapping[str, nn.Module],
    index: int,
    block: nn.Module,
    n_heads: int,
    pattern: nn.Module | None,
) -> LayerParts:
    out_projection = parts.out_projections[index]
    weight, bias = _weights(out_projection)
    after_attention = _site(lens, index, Role.POST_ATTN)
    after_mlp = _site(lens, index, Role.POST_MLP)
    attention_scale, mlp_scale = branch_scales(parts.family, block)
    normed_attention = sites[after_attention.path] if after_attention else out_projection
    normed_mlp = sites[after_mlp.path] if after_mlp else parts.mlp_outs[index]
    return LayerParts(
        block=block,
        out_projection=out_projection,
        attention_output=attention_scale or normed_attention,
        mlp_output=mlp_scale or normed_mlp,
        pattern=pattern,
        W_O=weight.unflatten(0, (n_heads, -1)),
        b_O=bias,
        post_attention=_post_attention(lens, after_attention, attention_scale, weight.shape[1]),
    )


def branch_scales(
    family: Family, block: nn.Module
) -> tuple[LearnedScale | None, LearnedScale | None]:
    """The modules of a block that multiply attention and MLP by a learned number, if any."""
    found = []
    for path in family.branch_scales or ("", ""):
        owner, _, name = path.rpartition(".")
        module = dict(block.get_submodule(owner).named_children()).get(name)
        found.append(module if isinstance(module, LearnedScale) else None)
    return found[0], found[1]


def _site(lens: Lens, layer: int, role: Role) -> NormSite | None:
    at = (s for s in lens.sites if s.layer == layer and s.role is role and not s.on_stream)
    return next(at, None)


def _post_attention(
    lens: Lens, site: NormSite | None, scale: LearnedScale | None, width: int
) -> PostAttention | None:
    """The norm after attention with every factor on its output in its gain and bias."""
    if site is None and scale is None:
        return None
    spec, gamma, beta = NormSpec(NormKind.IDENTITY, width), None, None
    if site is not None:
        spec = site.spec
        gamma, beta = gain_and_bias(lens, site)
    if not spec.kind.has_scale:
        path = "" if site is None else site.path
        raise NotApplicable(
            f"no component view of {lens.identity.name}: the norm after attention ({path}) is "
            f"{spec.kind.value}, which is no division by a scale, so what each head adds is "
            "not defined"
        )
    factor = spec.factor if scale is None else spec.factor * scale.value().detach().double()
    if isinstance(factor, float) and factor == 1.0:
        return PostAttention(spec, gamma, beta)
    device = lens.model.device
    one = torch.ones(width, dtype=torch.float64, device=device) if gamma is None else gamma
    return PostAttention(spec, one * factor, None if beta is None else beta * factor)


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
