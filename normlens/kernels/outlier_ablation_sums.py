"""What the passes of ``outlier-ablation`` on one batch come to: sums per ablation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.state import Reduction, State
from normlens.kernels.outlier_plan import Plan
from normlens.kernels.outlier_watch import QUANTITIES
from normlens.kernels.predictions import Targets as NextTokens
from normlens.text.sequences import Batch


def compare(
    intact: Float[Tensor, " token"],
    changed: Float[Tensor, " token"],
    tokens: NextTokens,
    sequences: int,
) -> Float[Tensor, "3 batch"]:
    """Count, loss and change of loss, summed per sequence."""
    delta = changed - intact
    values = torch.stack([torch.ones_like(changed), changed, delta])
    return tokens.sum_per_sequence(torch.where(delta.isfinite(), values, 0.0), sequences)


def add_losses(
    state: State, sums: Float[Tensor, "variant 3 batch"], batch: Batch, predictions: int
) -> None:
    """Declare per ablation the sums of :func:`compare` and their bootstrap replicates."""
    n = sums[:, 0].sum(-1).long()
    state.declare("n", n)
    state.declare("overflow", predictions - n)
    state.declare("sums", sums[:, 1:].sum(-1))
    paired = sums[:, [0, 2]].flatten(0, 1) @ batch.weights.T
    state.declare("replicates", paired.unflatten(0, (-1, 2)))


def add_norms(state: State, norms: Float[Tensor, "pass batch pos"], batch: Batch) -> None:
    """Declare per token group and pass the sum of the norms of the final residual."""
    groups = torch.stack([batch.first, batch.rest]).cpu()
    counted = groups[:, None] & norms.isfinite()
    state.declare("norm", torch.where(counted, norms, 0.0).sum((-1, -2)))  # [group pass]
    state.declare("norm_n", counted.sum((-1, -2)))


def add_sinks(state: State, alphas: Sequence[Tensor], plan: Plan, batch: Batch) -> None:
    """Per pass: heads that are a sink, attention to the first token; heads; sequences."""
    passes = 1 + sum(variant.chosen == "outlier" for variant in plan.variants)
    long = plan.long_enough(batch).cpu()
    if not alphas:
        heads = torch.zeros(passes, 3, len(batch.index), dtype=torch.float64)
    else:
        alpha = torch.stack(list(alphas)).flatten(2)  # [pass batch layer*head]
        sink = (alpha > plan.parameters.sink_epsilon).double()
        ones = torch.ones_like(alpha)
        heads = torch.stack([ones.sum(-1), sink.sum(-1), alpha.sum(-1)], 1)
        heads = torch.where(long, heads, 0.0)
    state.declare("sinks", heads.sum(-1))
    state.declare("sink_sequences", long.sum())
    boot = heads.flatten(0, 1) @ batch.weights.T
    state.declare("sink_replicates", boot.unflatten(0, (passes, 3)))


def add_chain(
    state: State,
    along: Mapping[tuple[int, str], Float[Tensor, "batch pos"]],
    spiked: Tensor,
    batch: Batch,
    layers: int,
) -> None:
    """Declare per layer and quantity its sum at tokens that carry an entry, and at the rest."""
    rest = batch.rest.cpu() & ~spiked
    total = torch.zeros(layers, len(QUANTITIES), 2, dtype=torch.float64)
    count = torch.zeros(layers, len(QUANTITIES), 2, dtype=torch.int64)
    for (layer, quantity), value in along.items():
        for group, members in enumerate((spiked, rest)):
            counted = members & value.isfinite()
            at = layer, QUANTITIES.index(quantity), group
            total[at] = torch.where(counted, value, 0.0).sum()
            count[at] = counted.sum()
    known = torch.zeros(layers, len(QUANTITIES), dtype=torch.int64)
    for layer, quantity in along:
        known[layer, QUANTITIES.index(quantity)] = 1
    state.declare("chain", total)
    state.declare("chain_n", count)
    state.declare("chain_known", known, Reduction.MAX)
