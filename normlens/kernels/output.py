"""Kernel of ``output``: how good the next-token predictions are, and how sure.

1. Per target (every position with a real next token): cross-entropy, entropy, top-1
   probability and correctness (:mod:`predictions`).
2. float64 sums per token group; sums per confidence bin ``((b-1)/B, b/B]`` for
   ``ECE = sum_b (n_b / n) |accuracy_b - confidence_b|`` (Guo et al. 2017, eq. 3); a log
   histogram of the cross-entropy; the sequences with the largest mean cross-entropy.
3. Per sequence the sums, weighted by the document's bootstrap weights.

Targets with a NaN or infinite logit are counted apart and left out of every number; they
turn the status of their group into ``overflow`` and fail the check ``finite_logits``.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.capture.statistics import BIN_COUNT, log_histogram
from normlens.kernels.output_summary import summarise
from normlens.kernels.predictions import Predictions, Targets, predict
from normlens.text.sequences import Batch


def _init(context: Context) -> State:
    bins = context.parameters.calibration_bins
    state = State()
    state.declare("n", torch.zeros(2, dtype=torch.int64))
    state.declare("overflow", torch.zeros(2, dtype=torch.int64))
    state.declare("sums", torch.zeros(3, 2, dtype=torch.float64))
    state.declare("bin_n", torch.zeros(2, bins, dtype=torch.int64))
    state.declare("bin_sums", torch.zeros(2, 2, bins, dtype=torch.float64))
    state.declare("histogram", torch.zeros(BIN_COUNT, dtype=torch.int64))
    state.declare("replicates", torch.zeros(context.replicates, 4, 2, dtype=torch.float64))
    state.declare("lowest_entropy", torch.tensor(math.inf).double(), Reduction.MIN)
    state.declare("highest_entropy", torch.tensor(-math.inf).double(), Reduction.MAX)
    worst = torch.zeros(0, 3, dtype=torch.float64)
    state.declare("worst", worst, Reduction.TOP, limit=context.parameters.worst)
    if context.parameters.per_token:
        state.declare("tokens", torch.zeros(0, 5, dtype=torch.float64), Reduction.ROWS)
    return state


def _update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    assert observed.logits is not None, "the pass gives what the declaration needs"
    targets = Targets.of(batch)
    predictions = predict(observed.logits, targets)
    if context.parameters.per_token:
        state.add("tokens", _token_rows(batch, targets, predictions))
    finite = predictions.cross_entropy.isfinite() & predictions.entropy.isfinite()
    state.add("overflow", torch.bincount(_group(targets.first[~finite]), minlength=2))
    _add(
        state,
        batch,
        Targets(*(t[finite].cpu() for t in vars(targets).values())),
        Predictions(*(p[finite].cpu() for p in vars(predictions).values())),
    )


def _add(state: State, batch: Batch, targets: Targets, predictions: Predictions) -> None:
    cross_entropy, entropy = predictions.cross_entropy.double(), predictions.entropy.double()
    confidence, correct = predictions.confidence.double(), predictions.correct.double()
    group = _group(targets.first)
    state.add("n", torch.bincount(group, minlength=2))
    state.add("histogram", log_histogram(cross_entropy))
    if len(group):
        state.add("lowest_entropy", entropy.min())
        state.add("highest_entropy", entropy.max())

    bins = state.tensors["bin_n"].shape[1]
    cell = group * bins + (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    state.add("bin_n", torch.bincount(cell, minlength=2 * bins).view(2, bins))
    in_bins = torch.zeros(2, 2 * bins, dtype=torch.float64)
    in_bins.index_add_(1, cell, torch.stack([confidence, correct]))
    state.add("bin_sums", in_bins.view(2, 2, bins))

    values = torch.stack([torch.ones_like(cross_entropy), cross_entropy, entropy, correct])
    split = torch.stack([values * (group == g) for g in range(2)], 1)
    per_sequence = targets.sum_per_sequence(split, len(batch.index))  # [4 group batch]
    state.add("sums", per_sequence[1:].sum(-1))
    replicates = batch.weights @ per_sequence.flatten(0, 1).T
    state.add("replicates", replicates.unflatten(1, (4, 2)))

    count, loss = per_sequence[:2].sum(1)
    scored = count > 0
    rows = torch.stack([loss / count, batch.index.double(), count], 1)
    state.add("worst", rows[scored])


def _group(first: Tensor) -> Tensor:
    """0 for predictions made at a first token, 1 for the rest."""
    return 1 - first.long()


def _token_rows(
    batch: Batch, targets: Targets, predictions: Predictions
) -> Float[Tensor, "token 5"]:
    """Rows ``sequence, position, token, cross-entropy, entropy``; position of the predicted."""
    columns = (
        batch.index[targets.sequence.cpu()],
        targets.position + 1,
        targets.token,
        predictions.cross_entropy,
        predictions.entropy,
    )
    return torch.stack([column.cpu().double() for column in columns], 1)


def _finish(state: State, context: Context) -> Finding:
    return summarise(state, context)


KERNEL = Streaming(init=_init, update=_update, finish=_finish)
"""What the runner looks up."""
