"""Find the components of a model by the row of its family and the sites of its Lens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from normlens.errors import NotApplicable
from normlens.models.components_scaling import scaling_of
from normlens.models.components_view import ComponentView, LayerParts, PostAttention
from normlens.models.families import Family, family_of
from normlens.models.lens import Lens, NormSite, Role
from normlens.models.parameters import gain_and_bias
from normlens.norms import NormKind


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The modules of a twin by what they are, resolved before anything replaces one.

    Attributes:
        family: the row they were found by.
        out_projections, mlp_outs: of each block, the linears that write into the residual.
        position_embedding: None where positions are not embedded.
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
        NotApplicable: norms stand on the residual stream (post-LN), or the unembedding is
            no linear: then nothing the model computes is a sum of components.
    """
    family, name = family_of(twin), lens.identity.name
    if family.final_norm is None or any(rule.on_stream for rule in family.norms):
        raise NotApplicable(
            f"no component view of {name}: its norms stand on the residual stream and rescale "
            "all that was added before, so no output is a sum of components"
        )
    unembedding = twin.get_output_embeddings()
    if not isinstance(unembedding, nn.Linear):
        raise NotApplicable(f"no component view of {name}: it has no linear unembedding")
    blocks = list(twin.get_submodule(family.blocks).children())
    positions = family.embeddings[1:]
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
        NotApplicable: the attention output is no linear, or the norm after it is opaque.
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
    return LayerParts(
        block=block,
        out_projection=out_projection,
        attention_output=sites[after_attention.path] if after_attention else out_projection,
        mlp_output=sites[after_mlp.path] if after_mlp else parts.mlp_outs[index],
        pattern=pattern,
        W_O=weight.unflatten(0, (n_heads, -1)),
        b_O=bias,
        post_attention=_post_attention(lens, after_attention) if after_attention else None,
    )


def _site(lens: Lens, layer: int, role: Role) -> NormSite | None:
    return next((s for s in lens.sites if s.layer == layer and s.role is role), None)


def _post_attention(lens: Lens, site: NormSite) -> PostAttention:
    if site.spec.kind is NormKind.OPAQUE:
        raise NotApplicable(
            f"no component view of {lens.identity.name}: the norm after attention "
            f"({site.path}) is opaque, so what each head adds is unknown"
        )
    return PostAttention(site.spec, *gain_and_bias(lens, site))


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
