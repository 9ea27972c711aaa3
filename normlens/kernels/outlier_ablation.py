"""Kernel of ``outlier-ablation``: what outlier dimensions and massive activations do.

1. ``find``: the statistics of ``outliers`` on the chosen sequences decide what is ablated
   (:mod:`outlier_targets`).
2. ``means``: mean value of every entry over the tokens that carry it.
3. ``ablate``: per batch the intact pass, which also says which tokens carry which entry,
   then one pass per ablation (:mod:`outlier_interventions`). Per target the change of
   cross-entropy; per token the norm of the final residual; per sequence and head the
   attention to the first token, and in the intact pass what norms make of the spikes
   (:mod:`outlier_watch`).
4. Check: zeroing no dimension leaves the first sequence's logits as they are.

Predictions with a NaN or infinite logit are counted apart, left out of their row, and turn
its status into ``overflow``.

Sources: 2208.07339 section 4 (random control); 2402.17762 section 4 (zero and mean);
2410.10781 eq. 7 (sink rate).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from normlens.capture.forward import observe
from normlens.capture.points import Point
from normlens.capture.protocol import Context, Finding, MapShards, Procedure
from normlens.capture.state import Reduction, State
from normlens.capture.tree import plain_tree
from normlens.catalog.declaration import Need
from normlens.catalog.outliers import OutliersParameters
from normlens.kernels.outlier_ablation_summary import summarise
from normlens.kernels.outlier_ablation_sums import (
    add_chain,
    add_losses,
    add_norms,
    add_sinks,
    compare,
)
from normlens.kernels.outlier_inputs import depth, linear_inputs, residual_width
from normlens.kernels.outlier_interventions import Variant, variants
from normlens.kernels.outlier_plan import Plan
from normlens.kernels.outlier_statistics import Statistics
from normlens.kernels.outlier_targets import choose
from normlens.kernels.outlier_watch import (
    ValueNorms,
    Watching,
    chain,
    look,
    sink_attention,
    spikes_of,
)
from normlens.kernels.outliers import KERNEL as OUTLIERS
from normlens.kernels.outliers import NEEDS as OUTLIERS_NEEDS
from normlens.kernels.predictions import Targets as NextTokens
from normlens.kernels.predictions import predict
from normlens.text.sequences import Batch

INTACT_NEEDS = frozenset({Need.LOGITS, Need.RESIDUAL, Need.NORM_OUTPUT, Need.NORM_MOMENTS})
SAME = 1e-4
"""Relative spread of an entry below which setting it to its mean changes nothing."""
ABLATED_NEEDS = frozenset({Need.LOGITS, Need.RESIDUAL})


def _run(context: Context, map_shards: MapShards) -> Finding:
    parameters, lens = context.parameters, context.lens
    sequences = context.sequences.spread(parameters.sequences)
    finding = replace(
        context,
        sequences=sequences,
        parameters=OutliersParameters(
            threshold=parameters.threshold,
            layer_share=parameters.layer_share,
            position_share=parameters.position_share,
            massive_threshold=parameters.massive_threshold,
            massive_ratio=parameters.massive_ratio,
            top=parameters.dimensions,
        ),
    )
    found = map_shards("find", sequences, partial(_find, finding))
    targets = choose(Statistics(found, finding), parameters.criterion, parameters.dimensions)
    sums = map_shards("means", sequences, partial(_means, Plan(context, targets, ())))
    mean = sums.tensors["sum"] / sums.tensors["n"]
    spread = (sums.tensors["square"] / sums.tensors["n"] - mean.square()).clamp_min(0).sqrt()
    constant = bool((spread <= SAME * mean.abs()).all())
    means = mean.tolist()
    norms = any(one.site is not None for one in linear_inputs(lens))
    made = variants(
        targets.dimensions, residual_width(lens), parameters.random_seeds, means, norms=norms
    )
    plan = Plan(context, targets, made, constant)
    return summarise(map_shards("ablate", sequences, partial(_ablate, plan)), plan)


@dataclass(frozen=True)
class _Reduce:
    context: Context
    batch: Batch

    def __call__(self, point: Point, value: Tensor) -> Mapping[str, Tensor]:
        return OUTLIERS.reduce(point, value, self.batch, self.context)


def _find(context: Context, batch: Batch) -> State:
    state = OUTLIERS.init(context)
    tree = plain_tree(context.lens)
    observed = observe(tree, batch, OUTLIERS_NEEDS, _Reduce(context, batch))
    OUTLIERS.update(state, batch, observed, context)
    return state


def _watching(plan: Plan, batch: Batch, *, spikes: bool) -> Watching:
    return Watching(batch, plan.targets, plan.parameters, depth(plan.lens), spikes)


def _means(plan: Plan, batch: Batch) -> State:
    watch = _watching(plan, batch, spikes=True)
    observed = look(plan.lens, batch, watch, frozenset({Need.RESIDUAL}))
    masks, values = spikes_of(observed, plan.targets.entries)
    state = State()
    held = [torch.where(masks[e], values[e].double(), 0.0) for e in plan.targets.entries]
    state.declare("sum", torch.stack([value.sum() for value in held]).cpu())
    state.declare("square", torch.stack([value.square().sum() for value in held]).cpu())
    state.declare("n", torch.stack([masks[e].sum() for e in plan.targets.entries]).cpu())
    return state


def _ablate(plan: Plan, batch: Batch) -> State:
    lens = plan.lens
    next_tokens = NextTokens.of(batch)
    sinks = frozenset({Need.ATTENTION}) if plan.long_enough(batch).any() else frozenset[Need]()
    values = ValueNorms(lens)
    watch = _watching(plan, batch, spikes=True)
    intact = look(lens, batch, watch, INTACT_NEEDS | sinks, values.hooks)
    assert intact.logits is not None, "logits were asked for"
    loss = predict(intact.logits, next_tokens).cross_entropy
    masks, _ = spikes_of(intact, plan.targets.entries)
    last = f"residual.{depth(lens)}"
    norms = [intact.reduced[last]["norm"]]
    alphas = [sink_attention(intact, depth(lens))] if sinks else []
    along = chain(lens, intact, values.seen, batch)
    del intact
    per_sequence: list[Tensor] = []
    watch = _watching(plan, batch, spikes=False)
    for variant in plan.variants:
        needs = ABLATED_NEEDS | (sinks if variant.chosen == "outlier" else frozenset())
        seen = look(lens, batch, watch, needs, variant.hooks(lens, masks))
        assert seen.logits is not None, "logits were asked for"
        changed = predict(seen.logits, next_tokens).cross_entropy
        per_sequence.append(compare(loss, changed, next_tokens, len(batch.index)))
        norms.append(seen.reduced[last]["norm"])
        if variant.chosen == "outlier" and sinks:
            alphas.append(sink_attention(seen, depth(lens)))
    state = State()
    add_losses(state, torch.stack(per_sequence), batch, len(next_tokens.token))
    add_norms(state, torch.stack(norms).cpu().double(), batch)
    add_sinks(state, alphas, plan, batch)
    spiked = torch.stack([masks[e] for e in plan.targets.entries]).any(0).cpu()
    add_chain(state, along, spiked, batch, depth(lens))
    state.declare("identity", _identity(plan, batch), Reduction.MAX)
    return state


def _identity(plan: Plan, batch: Batch) -> Tensor:
    """Relative change of the first sequence's logits when no dimension is set to 0."""
    if int(batch.index[0]) != 0:
        return torch.tensor(-torch.inf)
    length = int(batch.mask[0].sum())
    row = slice(0, 1), slice(0, length)
    one = Batch(
        batch.ids[row], batch.mask[row], batch.first[row], batch.rest[row],
        batch.index[:1], batch.document[:1], batch.weights[:, :1],
    )  # fmt: skip
    watch = _watching(plan, one, spikes=False)
    nothing = Variant("dimensions", "residual", "random").hooks(plan.lens, {})
    intact = look(plan.lens, one, watch, ABLATED_NEEDS).logits
    same = look(plan.lens, one, watch, ABLATED_NEEDS, nothing).logits
    assert intact is not None and same is not None
    return ((same - intact).abs().max() / intact.abs().max()).cpu()


KERNEL = Procedure(run=_run)
"""What the runner looks up."""
