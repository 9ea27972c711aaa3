"""Default mode of ``logit-attribution``: every position, next token, documents resampled.

The target of a position is the real token that follows it, read against the vocabulary mean.
First tokens of sequences are apart: they enter the conservation check alone. The NMAE of a
type is the mean of its components' NMAE; intervals are a Poisson bootstrap over documents.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.protocol import Components, ComponentWeights, Context
from normlens.capture.state import State
from normlens.kernels.attribution_tables import Estimate, Measured, members, present
from normlens.kernels.direct_effect import Component, component_list, direct_effects, places
from normlens.kernels.readout import read_from_logits, read_logits
from normlens.text.sequences import Batch

HEADLINE = "mean over heads of mean|DLA - DE| / mean|DE|, every position, next token"
SUMS = ("dla", "repair", "error", "effect")
RATIO = ("error", "effect")


def declare(state: State, context: Context, count: int) -> None:
    """Add sums per component and the bootstrap replicates of the NMAE's two sums."""
    for name in SUMS:
        state.declare(name, torch.zeros(count, dtype=torch.float64))
    for name in RATIO:
        shape = (context.replicates, count)
        state.declare(f"replicates.{name}", torch.zeros(shape, dtype=torch.float64))


def update(
    state: State,
    batch: Batch,
    components: Components,
    logits: Float[Tensor, "batch pos vocab"],
    weights: ComponentWeights,
) -> None:
    """Add one batch."""
    targets = batch.ids.roll(-1, 1)
    predicts = torch.zeros_like(batch.mask)
    predicts[:, :-1] = batch.has_next
    effects = direct_effects(components, weights, read_logits(weights, targets))
    discrepancy = effects.discrepancy(read_from_logits(logits, targets))[predicts]
    if len(discrepancy):
        state.add("conservation", discrepancy.max())
    counted = predicts & batch.rest
    everything = component_list(weights)
    rows = places(effects.components, everything)
    n = torch.zeros(len(everything), dtype=torch.int64)
    n[rows] = int(counted.sum())
    state.add("n", n)
    values = {
        "dla": effects.dla,
        "repair": effects.repair,
        "error": effects.repair.abs(),
        "effect": effects.effect.abs(),
    }
    for name, value in values.items():
        sums = torch.zeros(len(batch.ids), len(everything), dtype=torch.float64)
        sums[:, rows] = value.masked_fill(~counted, 0.0).sum(-1).T.cpu()
        state.add(name, sums.sum(0))
        if name in RATIO:
            state.add(f"replicates.{name}", batch.weights @ sums)


def measure(state: State, components: Sequence[Component], context: Context) -> Measured:
    """Sums, NMAE replicates and the mean NMAE per type."""
    rows = present(components, state.tensors["n"])
    kept = tuple(components[row] for row in rows)
    dla, repair, error, effect = (state.tensors[name][rows] for name in SUMS)
    replicates = (state.tensors["replicates.error"] / state.tensors["replicates.effect"])[:, rows]
    nmae = error / effect
    groups = {
        kind: Estimate(float(nmae[index].nanmean()), replicates[:, index].nanmean(1))
        for kind, index in members(kept).items()
    }
    return Measured(kept, state.tensors["n"][rows], dla, repair, error, effect, replicates, groups)
