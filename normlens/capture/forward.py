"""One forward pass, reduced to what was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.attention import recording_attention
from normlens.capture.collector import ComponentCollector
from normlens.capture.points import Point, places
from normlens.capture.protocol import Observed
from normlens.capture.steps import step_hooks
from normlens.capture.tree import Tree, run_model
from normlens.catalog.declaration import Need
from normlens.hooks import Hook, hooked
from normlens.models.layout import by_position
from normlens.models.lens import NormSite
from normlens.norms import NormSpec, centre, scale_of
from normlens.text.sequences import Batch

Watch = Callable[[Point, Any], Mapping[str, Tensor]]
"""What is kept of an activation; see :data:`normlens.capture.protocol.Reduce`."""


def watch_nothing(point: Point, value: Any) -> Mapping[str, Tensor]:
    """Keep nothing of any activation."""
    return {}


@torch.inference_mode()
def observe(
    tree: Tree, batch: Batch, needs: frozenset[Need], watch: Watch = watch_nothing
) -> Observed:
    """Run one batch and keep only what ``needs`` names.

    Padding is on the right: a causal model cannot see it, an encoder is given the mask.

    Args:
        tree: what to run.
        batch: what to run it on.
        needs: what to look at.
        watch: called with every activation of a need that is reduced where it is met.

    Raises:
        HookMismatch: a hook did not fire exactly once.
    """
    hooks: list[Hook] = []
    moments: dict[str, Tensor] = {}
    scales: dict[str, Tensor] = {}
    reduced: dict[str, Mapping[str, Tensor]] = {}
    if Need.NORM_MOMENTS in needs:
        moments = _buffers(tree, batch, tree.lens.sites, 2)
        scales = _buffers(tree, batch, [s for s in tree.lens.sites if scale_is_measured(s.spec)])
        for site in tree.lens.sites:
            record = _RecordMoments(site, moments[site.label], scales.get(site.label))
            hooks.append(Hook(tree.site_module(site), "input", record, site.label))
    for need in sorted(needs):
        for place in places(tree, need):
            record = _Reduce(place.point, watch, reduced)
            hooks.append(Hook(place.module, place.where, record, place.point.name))
        hooks.extend(step_hooks(tree, need, watch, reduced))
    collector = (
        ComponentCollector(tree.view)
        if tree.view is not None and Need.COMPONENTS in needs
        else None
    )
    if collector is not None:
        hooks.extend(collector.hooks)
    with ExitStack() as stack:
        stack.enter_context(hooked(tree.root, hooks))
        if Need.ATTENTION in needs:
            stack.enter_context(recording_attention(tree, watch, reduced))
        logits = run_model(tree, batch, logits=Need.LOGITS in needs)
    components = collector.components() if collector else None
    return Observed(moments, scales, logits, components, reduced)


def input_moments(x: Float[Tensor, "*batch width"]) -> Float[Tensor, "2 ..."]:
    """Mean and biased variance over the last axis, at least float32."""
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    # Two passes: torch.var_mean along the last axis is ten times slower on a CPU.
    mean = x.mean(-1)
    return torch.stack([mean, (x - mean[..., None]).square_().mean(-1)])


def scale_is_measured(spec: NormSpec) -> bool:
    """Whether a live scale can only be had from the whole input, not from its two moments."""
    return spec.kind.has_live_scale and not spec.kind.quadratic


def measured_scale(spec: NormSpec, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch"]:
    """The scale of a norm on its input, at least float32, by the definition of its kind."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return scale_of(spec, centre(spec, wide))[..., 0]


def _buffers(tree: Tree, batch: Batch, sites: Sequence[NormSite], *lead: int) -> dict[str, Tensor]:
    # Allocated before the pass: small tensors made during it would split the gaps that
    # activations leave, and the heap would grow by an activation per site.
    dtype = torch.promote_types(tree.lens.model.dtype, torch.float32)
    shapes = [
        (*lead, *batch.ids.shape, *((site.heads,) if site.layout.per_head else ()))
        for site in sites
    ]
    sizes = [math.prod(shape) for shape in shapes]
    parts = torch.empty(sum(sizes), dtype=dtype, device=batch.ids.device).split(sizes)
    return {
        site.label: part.view(shape) for site, part, shape in zip(sites, parts, shapes, strict=True)
    }


@dataclass(frozen=True)
class _RecordMoments:
    site: NormSite
    into: Tensor
    scale_into: Tensor | None

    def __call__(self, x: Tensor) -> None:
        batch, pos = self.into.shape[1:3]
        self.into.copy_(by_position(self.site, input_moments(x), batch, pos))
        if self.scale_into is not None:
            scale = measured_scale(self.site.spec, x)
            self.scale_into.copy_(by_position(self.site, scale, batch, pos))


@dataclass(frozen=True)
class _Reduce:
    point: Point
    watch: Watch
    into: dict[str, Mapping[str, Tensor]]

    def __call__(self, x: Tensor) -> None:
        self.into[self.point.name] = self.watch(self.point, x)
