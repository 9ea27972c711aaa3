"""What ``outlier-ablation`` keeps of a pass: spikes, sinks, and what norms make of spikes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.attention import AttentionChunk
from normlens.capture.forward import observe
from normlens.capture.points import Point
from normlens.capture.protocol import Observed
from normlens.capture.tree import plain_tree
from normlens.catalog.declaration import Need
from normlens.hooks import Hook, hooked
from normlens.kernels.outlier_targets import Entry, Targets, entry_masks
from normlens.kernels.token_scale import constant_scale, observed_scale
from normlens.models.blocks import block_modules
from normlens.models.families import family_of
from normlens.models.lens import Layout, Lens, NormSite, Role
from normlens.text.sequences import Batch

QUANTITIES = ("inverse_scale", "output_variance", "value_norm")


@dataclass(frozen=True)
class Watching:
    """Reductions of one pass.

    Attributes:
        batch: what is run.
        targets: where spikes are looked for.
        parameters: of the analysis.
        depth: number of blocks; the residual stream after them is the final one.
        spikes: whether to look for them (the intact pass does).
    """

    batch: Batch
    targets: Targets
    parameters: Any
    depth: int
    spikes: bool

    def __call__(self, point: Point, value: Any) -> Mapping[str, Tensor]:
        """What to keep of one activation."""
        if isinstance(value, AttentionChunk):
            return {"alpha": _on_first(value, self.parameters.sink_tokens).mean(-1)}
        if point.need is Need.NORM_OUTPUT:
            is_input = point.site is not None and point.site.role is Role.PRE_ATTN
            return {"variance": _wide(value).var(-1, correction=0)} if is_input else {}
        kept: dict[str, Tensor] = {}
        if point.layer == self.depth:
            kept["norm"] = torch.linalg.vector_norm(_wide(value), dim=-1)
        entries = [e for e in self.targets.entries if e.depth == point.layer]
        if self.spikes and entries:
            kept["spikes"] = entry_masks(
                value,
                entries,
                self.batch,
                massive=self.targets.massive,
                threshold=self.parameters.massive_threshold,
                ratio=self.parameters.massive_ratio,
            )
            kept["values"] = torch.stack([value[..., e.dimension] for e in entries])
        return kept


def _on_first(chunk: AttentionChunk, queries: int) -> Float[Tensor, "row head query"]:
    """Attention of the first queries to the first token, float64.

    Where weights are not a softmax, their share of the query's sum: it may be any number, and
    a query without attention has none on the first token.
    """
    on_first = chunk.probabilities[:, :, :queries, 0].double()
    if chunk.softmax:
        return on_first
    total = chunk.probabilities[:, :, :queries].double().sum(-1)
    return torch.where(total > 0, on_first / total, 0.0)


def look(
    lens: Lens,
    batch: Batch,
    watch: Watching,
    needs: frozenset[Need],
    hooks: Sequence[Hook] = (),
) -> Observed:
    """A pass under some hooks, which come before those that look."""
    with ExitStack() as stack:
        stack.enter_context(hooked(lens.model, hooks))
        return observe(plain_tree(lens), batch, needs, watch)


def spikes_of(
    observed: Observed, entries: Sequence[Entry]
) -> tuple[dict[Entry, Tensor], dict[Entry, Tensor]]:
    """Per entry the tokens that carry it ``[batch pos]`` and the values there."""
    masks: dict[Entry, Tensor] = {}
    values: dict[Entry, Tensor] = {}
    for depth in dict.fromkeys(entry.depth for entry in entries):
        kept = observed.reduced[f"residual.{depth}"]
        of_depth = [entry for entry in entries if entry.depth == depth]
        masks |= dict(zip(of_depth, kept["spikes"], strict=True))
        values |= dict(zip(of_depth, kept["values"], strict=True))
    return {e: masks[e] for e in entries}, {e: values[e] for e in entries}


def sink_attention(observed: Observed, layers: int) -> Float[Tensor, "batch layer head"]:
    """``alpha``, the mean attention of the first queries to the first token, float64."""
    alphas = [observed.reduced[f"attention.{i}"]["alpha"] for i in range(layers)]
    return torch.stack(alphas, 1).cpu()


def input_norms(lens: Lens) -> dict[int, NormSite]:
    """The norm before the attention of each layer that has one."""
    return {s.layer: s for s in lens.sites if s.role is Role.PRE_ATTN and s.layer is not None}


@dataclass
class ValueNorms:
    """Hooks that keep the norm of every token's value vectors, all heads together.

    They look at what attention mixes: the output of the norm on the values where there is
    one, else that of the linear that makes them.
    """

    lens: Lens
    seen: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """One per block; none where queries, keys and values come from one fused linear."""
        paths = family_of(self.lens.model).qkv
        if len(paths) != 3:
            return ()
        normed = {site.layer: site for site in self.lens.sites if site.role is Role.V}
        hooks: list[Hook] = []
        for i, block in enumerate(block_modules(self.lens.model)):
            site = normed.get(i)
            module = block.get_submodule(paths[2]) if site is None else self.lens.module(site)
            hooks.append(Hook(module, "output", _KeepNorm(self.seen, i, site), f"value.{i}"))
        return tuple(hooks)


@dataclass(frozen=True)
class _KeepNorm:
    into: dict[int, Tensor]
    layer: int
    site: NormSite | None

    def __call__(self, x: Tensor) -> None:
        norm = torch.linalg.vector_norm(_wide(x), dim=-1)
        if self.site is not None and self.site.layout.per_head:
            heads = 1 if self.site.layout is Layout.BATCH_HEAD_POS else 2
            norm = torch.linalg.vector_norm(norm, dim=heads)
        self.into[self.layer] = norm


def chain(
    lens: Lens, observed: Observed, values: Mapping[int, Tensor], batch: Batch
) -> dict[tuple[int, str], Float[Tensor, "batch pos"]]:
    """Per layer and quantity, its value at every token; what is unknown is left out."""
    found: dict[tuple[int, str], Tensor] = {}
    for layer, site in input_norms(lens).items():
        constants = constant_scale(site.spec, batch.ids.shape[1])
        if site.spec.kind.has_live_scale:
            scale = observed_scale(site, observed).reshape(batch.ids.shape)
            found[layer, "inverse_scale"] = scale.reciprocal()
        elif constants is not None:
            found[layer, "inverse_scale"] = constants.reciprocal().expand(batch.ids.shape)
        found[layer, "output_variance"] = observed.reduced[f"norm.{site.label}"][
            "variance"
        ].reshape(batch.ids.shape)
    for layer, norm in values.items():
        found[layer, "value_norm"] = norm.reshape(batch.ids.shape)
    return {key: value.cpu().double() for key, value in found.items()}


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
