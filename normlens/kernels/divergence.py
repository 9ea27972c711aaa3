"""Kernel of ``divergence``: how differently two models predict the same text.

1. Per target (every position with a real next token) of both models' logits: the
   Jensen-Shannon divergence, both Kullback-Leibler divergences, whether the most probable
   ids agree, and both cross-entropies (:mod:`divergence_tokens`).
2. float64 sums by token group, by class of the predicted token (:mod:`token_classes`) and by
   position in powers of two; per sequence, weighted by the document's bootstrap weights, so
   intervals of differences are paired.
3. The tokens with the largest divergence, and with the largest rise and fall of the loss;
   not the predictions made at first tokens, which are alike wherever sequences start alike.
4. Checks: every JSD in [0, ln 2]; the first sequence's JSD with the models exchanged; the JSD
   of the model and itself, from two passes over the first sequence.

Both models run on the same rows, a few sequences at a time, so that the logits of the two
stay within a bound. Targets with a NaN or infinite logit in either model are counted apart
and left out of every number.

Source: Lin 1991 (JSD); the vanilla-model comparison of 2507.02559.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.capture.protocol import Context, Finding, MapShards, Procedure
from normlens.capture.state import Reduction, State
from normlens.capture.tree import plain_tree, run_model
from normlens.errors import NotApplicable
from normlens.kernels.divergence_cells import Cells, cells_of
from normlens.kernels.divergence_summary import MEASURES, RANKINGS, summarise
from normlens.kernels.divergence_tokens import Divergences, compare_predictions
from normlens.kernels.predictions import Targets
from normlens.models.context import context_length
from normlens.models.families import family_of
from normlens.models.lens import Lens
from normlens.models.tokenizers import tokenizer_of
from normlens.text.encoding import tokenizer_sha256
from normlens.text.sequences import Batch

MOST_LOGITS = 2**28
"""Logits of one model held at a time, unless a single sequence has more: 1 GiB in float32."""


def _run(context: Context, map_shards: MapShards) -> Finding:
    assert context.reference is not None, "the runner asks for a reference"
    _require_comparable(context, context.reference)
    cells = cells_of(context.sequences, tokenizer_of(context.lens))
    compare = _Compare(context.lens, context.reference, cells, context.parameters.worst)
    state = map_shards("divergence", context.sequences, compare)
    return summarise(state, cells, context)


def _require_comparable(context: Context, reference: Lens) -> None:
    name, other, sequences = context.lens.identity.name, reference.identity.name, context.sequences
    if not family_of(reference.model).causal:
        raise NotApplicable(f"the reference {other} is an encoder; it predicts no next token")
    if tokenizer_sha256(tokenizer_of(reference)) != sequences.tokenizer_sha256:
        raise NotApplicable(
            f"{name} and {other} have different tokenizers, so their predictions are not over "
            "the same tokens"
        )
    if sequences.ids.shape[1] > context_length(reference):
        raise NotApplicable(
            f"the sequences have up to {sequences.ids.shape[1]} tokens and {other} reads "
            f"{context_length(reference)}; choose a shorter context"
        )
    sizes = [_vocabulary(lens) for lens in (context.lens, reference)]
    if sizes[0] != sizes[1]:
        raise NotApplicable(
            f"{name} has {sizes[0]} logits and {other} {sizes[1]}, so their predictions are not "
            "over the same tokens"
        )


def _vocabulary(lens: Lens) -> int:
    return int(lens.model.config.get_text_config().vocab_size)


@dataclass(frozen=True)
class _Compare:
    """Both models on one batch, reduced."""

    lens: Lens
    reference: Lens
    cells: Cells
    worst: int

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> State:
        state = self._empty(batch.weights.shape[0])
        for part in _parts(batch, _vocabulary(self.lens)):
            targets = Targets.of(part)
            logits, reference = _logits(self.lens, part), _logits(self.reference, part)
            found = compare_predictions(logits, reference, targets)
            self._add(state, part, targets, found)
            if int(part.index[0]) == 0:
                swapped = compare_predictions(reference, logits, targets)
                state.add("swapped", _largest((found.jsd - swapped.jsd).abs()))
                state.add("itself", self._itself(part))
        return state

    def _empty(self, replicates: int) -> State:
        size, columns = self.cells.size, len(MEASURES) + 4
        state = State()
        state.declare("n", torch.zeros(size, dtype=torch.int64))
        state.declare("overflow", torch.zeros(size, dtype=torch.int64))
        state.declare("sums", torch.zeros(len(MEASURES), size, dtype=torch.float64))
        shape = (replicates, len(MEASURES) + 1, size)
        state.declare("replicates", torch.zeros(shape, dtype=torch.float64))
        state.declare("lowest", torch.tensor(math.inf).double(), Reduction.MIN)
        for name in ("highest", "swapped", "itself"):
            state.declare(name, torch.tensor(-math.inf).double(), Reduction.MAX)
        for ranking in RANKINGS:
            rows = torch.zeros(0, columns, dtype=torch.float64)
            state.declare(f"worst.{ranking}", rows, Reduction.TOP, limit=self.worst)
        return state

    def _add(self, state: State, batch: Batch, targets: Targets, found: Divergences) -> None:
        values = torch.stack([getattr(found, name) for name in MEASURES]).cpu().double()
        finite = values.isfinite().all(0)
        sequence, position = targets.sequence.cpu(), targets.position.cpu()
        cell = self.cells.index[:, batch.index[sequence], position]  # [partition token]
        counted = torch.cat([torch.ones_like(values[:1]), values])
        per_sequence = _sums(
            cell[:, finite], sequence[finite], counted[:, finite], self.cells.size, batch
        )
        lost = cell[:, ~finite].flatten()
        state.add("overflow", torch.bincount(lost, minlength=self.cells.size))
        state.add("n", per_sequence[0].sum(0).long())
        state.add("sums", per_sequence[1:].sum(1))
        state.add("replicates", torch.einsum("rb,mbc->rmc", batch.weights, per_sequence))
        if bool(finite.any()):
            state.add("lowest", values[0, finite].min())
            state.add("highest", values[0, finite].max())
        key = batch.index[sequence] * self.cells.index.shape[-1] + position
        tops = torch.stack([found.top, found.reference_top]).cpu().double()
        ranked = finite & ~targets.first.cpu()
        for ranking, (measure, sign) in RANKINGS.items():
            size = sign * values[MEASURES.index(measure)]
            rows = torch.stack([size, key.double(), *tops, *values], 1)
            state.add(f"worst.{ranking}", rows[ranked & (size > 0)])

    def _itself(self, batch: Batch) -> Tensor:
        """Largest JSD between two passes of the model over the first sequence."""
        one = _rows(batch, slice(0, 1))
        again = (_logits(self.lens, one), _logits(self.lens, one))
        return _largest(compare_predictions(*again, Targets.of(one)).jsd.abs())


def _sums(
    cell: Int[Tensor, "partition token"],
    sequence: Int[Tensor, " token"],
    values: Float[Tensor, "measure token"],
    size: int,
    batch: Batch,
) -> Float[Tensor, "measure batch cell"]:
    """Sums per sequence and cell; a token is in one cell of every partition."""
    total = torch.zeros(len(values), len(batch.index) * size, dtype=torch.float64)
    for partition in cell:
        total.index_add_(1, sequence * size + partition, values)
    return total.unflatten(1, (-1, size))


def _largest(values: Float[Tensor, " token"]) -> Tensor:
    finite = values[values.isfinite()]
    return finite.max() if len(finite) else values.new_tensor(-math.inf)


def _logits(lens: Lens, batch: Batch) -> Float[Tensor, "batch pos vocab"]:
    device = batch.ids.device
    here = replace(
        batch, ids=batch.ids.to(lens.placement.device), mask=batch.mask.to(lens.placement.device)
    )
    logits = run_model(plain_tree(lens), here, logits=True)
    assert logits is not None, "logits were asked for"
    return logits.to(device)


def _parts(batch: Batch, vocabulary: int) -> Iterator[Batch]:
    size = max(1, MOST_LOGITS // (batch.ids.shape[1] * vocabulary))
    for start in range(0, len(batch.index), size):
        yield _rows(batch, slice(start, start + size))


def _rows(batch: Batch, rows: slice) -> Batch:
    return Batch(
        batch.ids[rows], batch.mask[rows], batch.first[rows], batch.rest[rows],
        batch.index[rows], batch.document[rows], batch.weights[:, rows],
    )  # fmt: skip


KERNEL = Procedure(run=_run)
"""What the runner looks up."""
