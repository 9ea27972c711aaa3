"""Kernel of ``freeze-sweep``: loss and divergence when live scales are fixed to their mean.

1. Mean scale of every live site over first tokens and over all others.
2. Per batch the intact predictions, then those with each site frozen alone (``single``) and
   with it and all sites before it in removal order frozen (``cumulative``). The first
   cumulative variant is the first single one and is not run twice.
3. Per target the change of the cross-entropy and ``KL(intact || frozen)``; per sequence
   their sums, weighted by the document's bootstrap weights, so the interval is paired.
4. Check: on the first sequence, freezing every site to its own live scale leaves the logits
   as they are.

``2 S`` forward passes for S live sites. Targets with a NaN or infinite logit in either
model are counted apart and left out of the row, whose status becomes ``overflow``.

Sources: the removal order of 2507.02559, section 3 and its code; 2409.13710.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.forward import observe
from normlens.capture.protocol import Context, Finding, MapShards, Procedure
from normlens.capture.state import Reduction, State
from normlens.capture.tree import plain_tree, run_model
from normlens.catalog.declaration import Need
from normlens.errors import NotApplicable
from normlens.hooks import hooked
from normlens.kernels.freeze_sweep_summary import summarise
from normlens.kernels.freezing import freeze_hooks, removal_order
from normlens.kernels.predictions import Reference, Targets, divergence, reference
from normlens.kernels.token_scale import observed_scale
from normlens.models.lens import Lens, NormSite
from normlens.norms.spec import NormKind
from normlens.text.sequences import Batch

Sites = tuple[NormSite, ...]
Scales = Mapping[NormSite, Float[Tensor, "batch pos *head"]]


def _run(context: Context, map_shards: MapShards) -> Finding:
    lens = context.lens
    sites = removal_order(lens.sites)
    if not sites:
        raise NotApplicable(_why_not(lens))
    sequences = context.sequences.spread(context.parameters.sequences)
    means = map_shards("means", sequences, partial(_mean_scales, lens, sites))
    frozen = means.tensors["sum"] / means.tensors["n"]  # [first/rest site]
    swept = map_shards("sweep", sequences, partial(_sweep, lens, sites, frozen))
    return summarise(swept, sites, frozen, lens)


def _why_not(lens: Lens) -> str:
    name = lens.identity.name
    kinds = {site.spec.kind for site in lens.sites}
    if NormKind.OPAQUE in kinds:
        return f"no norm of {name} has a known live scale; nothing to freeze"
    if without := sorted(kind.value for kind in kinds if not kind.linear):
        return (
            f"no norm of {name} divides a token by a statistic of itself ({', '.join(without)} "
            "acts on each element alone); nothing to freeze"
        )
    return f"every norm of {name} is scale-free already; nothing to freeze"


def _mean_scales(lens: Lens, sites: Sites, batch: Batch) -> State:
    live = _live_scales(lens, sites, batch)
    scales = [live[site].cpu().double() for site in sites]
    groups = (batch.first.cpu(), batch.rest.cpu())
    sums = [torch.stack([scale[group].sum() for scale in scales]) for group in groups]
    counts = [torch.tensor([scale[group].numel() for scale in scales]) for group in groups]
    state = State()
    state.declare("sum", torch.stack(sums))
    state.declare("n", torch.stack(counts))
    return state


def _live_scales(lens: Lens, sites: Sites, batch: Batch) -> Scales:
    observed = observe(plain_tree(lens), batch, frozenset({Need.NORM_MOMENTS}))
    return {site: observed_scale(site, observed) for site in sites}


@torch.inference_mode()
def _sweep(lens: Lens, sites: Sites, frozen: Float[Tensor, "2 site"], batch: Batch) -> State:
    first, rest = frozen.to(batch.ids.device, _wide(lens))
    scales = {site: torch.where(batch.first, first[i], rest[i]) for i, site in enumerate(sites)}
    targets = Targets.of(batch)
    intact = reference(_logits(lens, batch, {}), targets)
    singles = [_compare(lens, batch, targets, intact, {site: scales[site]}) for site in sites]
    cumulative = [
        _compare(lens, batch, targets, intact, {site: scales[site] for site in sites[:step]})
        for step in range(2, len(sites) + 1)
    ]
    # [variant, n loss delta kl, batch]; the first cumulative variant is the first single one.
    sums = torch.stack([*singles, singles[0], *cumulative])
    state = State()
    state.declare("n", sums[:, 0].sum(-1).long())
    state.declare("overflow", len(targets.token) - sums[:, 0].sum(-1).long())
    state.declare("sums", sums[:, 1:].sum(-1))
    paired = sums[:, [0, 2]].flatten(0, 1) @ batch.weights.T
    state.declare("replicates", paired.unflatten(0, (-1, 2)))
    state.declare("identity", _identity(lens, sites, batch), Reduction.MAX)
    return state


def _compare(
    lens: Lens, batch: Batch, targets: Targets, intact: Reference, scales: Scales
) -> Float[Tensor, "4 batch"]:
    """Count, loss, change of loss and divergence of one variant, summed per sequence."""
    loss, kl = divergence(intact, _logits(lens, batch, scales), targets)
    delta = loss - intact.cross_entropy
    counted = delta.isfinite() & kl.isfinite()
    values = torch.stack([torch.ones_like(loss), loss, delta, kl])
    return targets.sum_per_sequence(torch.where(counted, values, 0.0), len(batch.index))


def _logits(lens: Lens, batch: Batch, scales: Scales) -> Float[Tensor, "batch pos vocab"]:
    with hooked(lens.model, freeze_hooks(lens, scales)):
        logits = run_model(plain_tree(lens), batch, logits=True)
    assert logits is not None, "logits were asked for"
    return logits


def _identity(lens: Lens, sites: Sites, batch: Batch) -> Tensor:
    """Relative change of the first sequence's logits when frozen to its own live scales."""
    if int(batch.index[0]) != 0:
        return torch.tensor(-math.inf)
    length = int(batch.mask[0].sum())
    row = slice(0, 1), slice(0, length)
    one = Batch(
        batch.ids[row], batch.mask[row], batch.first[row], batch.rest[row],
        batch.index[:1], batch.document[:1], batch.weights[:, :1],
    )  # fmt: skip
    intact = _logits(lens, one, {}).to(_wide(lens))
    frozen = _logits(lens, one, _live_scales(lens, sites, one)).to(_wide(lens))
    return ((frozen - intact).abs().max() / intact.abs().max()).cpu()


def _wide(lens: Lens) -> torch.dtype:
    return torch.promote_types(lens.model.dtype, torch.float32)


KERNEL = Procedure(run=_run)
"""What the runner looks up."""
