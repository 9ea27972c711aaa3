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
from normlens.kernels.token_scale import constant_scale, token_scale
from normlens.models.blocks import block_modules
from normlens.models.families import family_of
from normlens.models.lens import Lens, NormSite, Role
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
            queries = self.parameters.sink_tokens
            return {"alpha": value.probabilities[:, :, :queries, 0].double().mean(-1)}
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
    """Hooks that keep the norm of every token's value vectors, all heads together."""

    lens: Lens
    seen: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """One per block; none where queries, keys and values come from one fused linear."""
        paths = family_of(self.lens.model).qkv
        if len(paths) != 3:
            return ()
        return tuple(
            Hook(block.get_submodule(paths[2]), "output", _KeepNorm(self.seen, i), f"value.{i}")
            for i, block in enumerate(block_modules(self.lens.model))
        )


@dataclass(frozen=True)
class _KeepNorm:
    into: dict[int, Tensor]
    layer: int

    def __call__(self, x: Tensor) -> None:
        self.into[self.layer] = torch.linalg.vector_norm(_wide(x), dim=-1)


def chain(
    lens: Lens, observed: Observed, values: Mapping[int, Tensor], batch: Batch
) -> dict[tuple[int, str], Float[Tensor, "batch pos"]]:
    """Per layer and quantity, its value at every token; what is unknown is left out."""
    found: dict[tuple[int, str], Tensor] = {}
    for layer, site in input_norms(lens).items():
        mean, variance = observed.norm_moments[site.label].reshape(2, *batch.ids.shape)
        constant = constant_scale(site.spec)
        if site.spec.kind.has_live_scale:
            found[layer, "inverse_scale"] = token_scale(site.spec, mean, variance).reciprocal()
        elif constant is not None:
            found[layer, "inverse_scale"] = torch.full_like(mean, 1 / constant)
        found[layer, "output_variance"] = observed.reduced[f"norm.{site.label}"][
            "variance"
        ].reshape(batch.ids.shape)
    for layer, norm in values.items():
        found[layer, "value_norm"] = norm.reshape(batch.ids.shape)
    return {key: value.cpu().double() for key, value in found.items()}


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
