"""Kernel of ``prompt-patching``: which activation carries what tells two prompts apart.

1. Run the clean prompt and keep the residual stream and the output of attention and MLP at
   every block (:mod:`patching`); run the corrupted one.
2. For every place and every position from the first that differs on, run the corrupted prompt
   with the clean activation there; one row of a batch each.
3. ``d = logit(answer) - logit(wrong)`` at the last position;
   ``recovery = (d - d_corrupted) / (d_clean - d_corrupted)``.
4. Checks, rows of the same batches: the residual stream replaced everywhere at one depth, or
   every place at once, gives the clean difference; nothing replaced, the corrupted one.

A causal model's activations before the first position that differs are the same in both runs.

Sources: 2211.00593 (logit difference); 2404.15255 (patching and its metrics).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.capture.protocol import Context, Finding, MapShards, Procedure
from normlens.capture.state import Reduction, State
from normlens.errors import NotApplicable
from normlens.kernels.patching import Activations, Place, patched, places, record
from normlens.kernels.prompt_patching_tables import Baseline, Patched, summarise
from normlens.models.components import ComponentView, component_view
from normlens.models.tokenizers import tokenizer_of
from normlens.text.prompt_sets import PromptPair, PromptText, encode_pair
from normlens.text.sequences import Batch, Sequences

EVERYWHERE = -1
"""As a position: all of them."""


@dataclass(frozen=True)
class Patch:
    """Replace these places at one position; no place, nothing is replaced."""

    places: tuple[Place, ...]
    position: int


@dataclass(frozen=True, eq=False)
class _Plan:
    view: ComponentView
    pair: PromptPair
    clean: Activations
    patches: tuple[Patch, ...]


def _run(context: Context, map_shards: MapShards) -> Finding:
    lens = context.lens
    pair = pair_of(context)
    view = component_view(lens)
    device = lens.placement.device
    clean_ids, corrupted_ids = (
        torch.tensor([ids], device=device) for ids in (pair.clean_ids, pair.corrupted_ids)
    )
    clean, clean_logits = record(view, clean_ids)
    _, corrupted_logits = record(view, corrupted_ids)
    start = int((clean_ids != corrupted_ids)[0].nonzero()[0])
    every = places(view.n_layers)
    controls = controls_of(every)
    wanted = tuple(
        Patch((place,), position)
        for place in every
        for position in range(start, clean_ids.shape[1])
    )
    plan = _Plan(view, pair, clean, (*controls, *wanted))
    rows = _rows(context.sequences, corrupted_ids.cpu(), len(plan.patches))
    state = map_shards("patch", rows, partial(_patch, plan))
    difference = state.tensors["difference"]
    measured = Patched(every, start, difference[len(controls) :].view(len(every), -1))
    baselines = [Baseline.of(x[0, -1], pair) for x in (clean_logits, corrupted_logits)]
    nothing, everything = difference[0], difference[1 : len(controls)]
    return summarise(context, pair, baselines, measured, nothing, everything)


def pair_of(context: Context) -> PromptPair:
    """The pair under the model's tokenizer.

    Raises:
        NotApplicable: it does not suit it: prompts of different lengths, answers that are not
            single tokens.
    """
    p = context.parameters
    text = PromptText("pair", "", p.clean, p.corrupted, p.answer, p.wrong)
    found = encode_pair(text, tokenizer_of(context.lens), context.sequences.bos)
    if isinstance(found, PromptPair):
        return found
    raise NotApplicable(
        f"the pair does not suit {context.lens.identity.name}: {found}; choose prompts of as many "
        "tokens and answers of one"
    )


def controls_of(every: Sequence[Place]) -> tuple[Patch, ...]:
    """Nothing; the residual stream everywhere at each depth; everything."""
    stream = [place for place in every if place.what == "residual"]
    return (
        Patch((), EVERYWHERE),
        *(Patch((place,), EVERYWHERE) for place in stream),
        Patch(tuple(every), EVERYWHERE),
    )


def _rows(sequences: Sequences, ids: Int[Tensor, "1 pos"], count: int) -> Sequences:
    """The corrupted prompt once for every patch."""
    return replace(
        sequences,
        ids=ids.expand(count, -1),
        lengths=torch.full((count,), ids.shape[1]),
        document=torch.zeros(count, dtype=torch.int64),
    )


def _patch(plan: _Plan, batch: Batch) -> State:
    masks: dict[Place, Tensor] = {}
    for row, index in enumerate(batch.index.tolist()):
        patch = plan.patches[index]
        where = slice(None) if patch.position == EVERYWHERE else patch.position
        for place in patch.places:
            masks.setdefault(place, torch.zeros_like(batch.mask))[row, where] = True
    logits = patched(plan.view, batch.ids, plan.clean, masks)[:, -1]
    state = State()
    state.declare("difference", torch.zeros(0, dtype=torch.float64), Reduction.ROWS)
    state.add("difference", logit_difference(logits, plan.pair))
    return state


def logit_difference(logits: Float[Tensor, "row vocab"], pair: PromptPair) -> Float[Tensor, " row"]:
    """Logit of the answer minus that of the wrong one, float64."""
    return logits[:, pair.answer_id].double() - logits[:, pair.wrong_id].double()


KERNEL = Procedure(run=_run)
"""What the runner looks up."""
