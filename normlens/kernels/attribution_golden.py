"""Golden mode of ``logit-attribution``: the published procedure.

One position per sequence, the last real one; the target is the token *at* that position;
vocabulary-centred; no BOS. Per type of component

    NMAE = mean |DLA - DE| / mean |DE|      both means over components and sequences

The bootstrap resamples components and sequences, each with replacement and crossed, as the
authors do; its draws are seeded, hence the same for models of one shape on one corpus.

Source: 2507.02559, table of DLA errors; code in submarat/removing-layer-norm,
mech_interp/attention_head_attribution. Theirs draws 1000 replicates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.protocol import Components, ComponentWeights, Context
from normlens.capture.state import Reduction, State
from normlens.errors import UsageError
from normlens.kernels.attribution_scope import select_positions
from normlens.kernels.attribution_tables import Estimate, Measured, members, present
from normlens.kernels.direct_effect import Component, component_list, direct_effects, places
from normlens.kernels.readout import read_from_logits, read_logits
from normlens.text.sequences import Batch

HEADLINE = "mean|DLA - DE| / mean|DE| pooled over heads and sequences, last position, current token"
SEED = 0


def declare(state: State, context: Context, count: int) -> None:
    """Add one row per sequence.

    Raises:
        UsageError: the sequences start with BOS.
    """
    if context.sequences.bos != "none":
        raise UsageError(
            "golden mode reproduces numbers made without BOS, the corpus has it prepended; "
            "pass --bos none, or use the default mode"
        )
    for name in ("dla", "repair"):
        state.declare(name, torch.zeros(0, count, dtype=torch.float64), Reduction.ROWS)


def update(
    state: State,
    batch: Batch,
    components: Components,
    logits: Float[Tensor, "batch pos vocab"],
    weights: ComponentWeights,
) -> None:
    """Add one batch."""
    sequence = torch.arange(len(batch.ids), device=batch.ids.device)
    last = batch.mask.sum(1) - 1
    targets = batch.ids[sequence, last][:, None]
    chosen = select_positions(components, sequence, last)
    effects = direct_effects(chosen, weights, read_logits(weights, targets), last[:, None])
    logit = read_from_logits(logits[sequence, last][:, None], targets)
    state.add("conservation", effects.discrepancy(logit).max())
    everything = component_list(weights)
    where = places(effects.components, everything)
    n = torch.zeros(len(everything), dtype=torch.int64)
    n[where] = len(batch.ids)
    state.add("n", n)
    for name, value in {"dla": effects.dla, "repair": effects.repair}.items():
        rows = torch.zeros(len(batch.ids), len(everything), dtype=torch.float64)
        rows[:, where] = value[..., 0].T.cpu()
        state.add(name, rows)


def measure(state: State, components: Sequence[Component], context: Context) -> Measured:
    """Sums, pooled NMAE per type, and crossed bootstrap replicates."""
    where = present(components, state.tensors["n"])
    kept = tuple(components[index] for index in where)
    dla, repair = state.tensors["dla"][:, where], state.tensors["repair"][:, where]
    error, effect = repair.abs(), (dla + repair).abs()
    replicates, groups = _bootstrap(error, effect, members(kept), context.replicates)
    return Measured(
        components=kept,
        n=state.tensors["n"][where],
        dla=dla.sum(0),
        repair=repair.sum(0),
        error=error.sum(0),
        effect=effect.sum(0),
        replicates=replicates,
        groups={
            kind: Estimate(float(error[:, index].sum() / effect[:, index].sum()), groups[kind])
            for kind, index in members(kept).items()
        },
    )


def _bootstrap(
    error: Float[Tensor, "sequence component"],
    effect: Float[Tensor, "sequence component"],
    groups: dict[str, list[int]],
    replicates: int,
) -> tuple[Float[Tensor, "replicate component"], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(SEED)
    by_component: list[Tensor] = []
    by_group: dict[str, list[Tensor]] = {kind: [] for kind in groups}
    for _ in range(replicates):
        times = _resample(len(error), generator)
        errors, effects = times @ error, times @ effect
        by_component.append(errors / effects)
        for kind, index in groups.items():
            chosen = _resample(len(index), generator)
            by_group[kind].append(errors[index] @ chosen / (effects[index] @ chosen))
    return torch.stack(by_component), {k: torch.stack(v) for k, v in by_group.items()}


def _resample(count: int, generator: torch.Generator) -> Float[Tensor, " count"]:
    """How often each of ``count`` items is drawn in ``count`` draws with replacement."""
    if count == 0:
        return torch.zeros(0, dtype=torch.float64)
    draws = torch.randint(count, (count,), generator=generator)
    return torch.bincount(draws, minlength=count).double()
