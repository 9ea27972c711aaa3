"""Per-token quantities of next-token predictions, from logits, in bounded memory.

For logits ``l`` and ``z = l - max l``, with ``Z = sum exp z`` over the vocabulary:

    cross-entropy   ln Z - z[target]
    entropy         ln Z - sum(exp(z) * z) / Z
    confidence      1 / Z, the largest probability
    KL(p || q)      ln Z_q - sum(p * z_q) - H(p)

Logits are gathered and upcast to float32 or wider a few rows at a time; no float64 copy of
them is ever made. A row with a NaN or infinite logit gives a NaN entropy or divergence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.text.sequences import Batch

CHUNK_ELEMENTS = 2**22
"""Logits upcast at a time: 16 MiB in float32."""


@dataclass(frozen=True)
class Targets:
    """The predictions of a batch that have a real next token, in corpus order.

    Attributes:
        sequence: row in the batch.
        position: position that predicts.
        token: id that comes next.
        first: whether the first token of a sequence predicts.
    """

    sequence: Int[Tensor, " token"]
    position: Int[Tensor, " token"]
    token: Int[Tensor, " token"]
    first: Bool[Tensor, " token"]

    @staticmethod
    def of(batch: Batch) -> Targets:
        """The targets of a batch, on its device."""
        sequence, position = batch.has_next.nonzero(as_tuple=True)
        token = batch.ids[sequence, position + 1]
        return Targets(sequence, position, token, batch.first[sequence, position])

    def sum_per_sequence(
        self, values: Float[Tensor, "*kind token"], sequences: int
    ) -> Float[Tensor, "*kind batch"]:
        """Sum per-token values over each sequence of the batch, float64 on the CPU."""
        values = values.cpu().double()
        total = values.new_zeros(*values.shape[:-1], sequences)
        return total.index_add_(-1, self.sequence.cpu(), values)


@dataclass(frozen=True)
class Predictions:
    """Quantities per target; float32 (or the logits' wider dtype), nats where they have a unit.

    ``correct`` says whether the most probable id (of equals, the first) came next.
    """

    cross_entropy: Float[Tensor, " token"]
    entropy: Float[Tensor, " token"]
    confidence: Float[Tensor, " token"]
    correct: Bool[Tensor, " token"]


@dataclass(frozen=True)
class Reference:
    """A predictive distribution that others are compared with.

    ``probabilities`` are as large as the logits in float32.
    """

    probabilities: Float[Tensor, "token vocab"]
    cross_entropy: Float[Tensor, " token"]
    entropy: Float[Tensor, " token"]


@torch.no_grad()
def predict(logits: Float[Tensor, "batch pos vocab"], targets: Targets) -> Predictions:
    """Cross-entropy, entropy, confidence and correctness of every target."""
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for rows, where in chunks(logits, targets):
        token = targets.token[where]
        top, best = rows.max(-1)
        shifted = rows.sub_(top[:, None])
        weights = shifted.exp()
        total = weights.sum(-1)
        log_total = total.log()
        chosen = shifted.gather(-1, token[:, None])[:, 0]
        entropy = log_total - weights.mul_(shifted).sum(-1) / total
        parts.append((log_total - chosen, entropy, total.reciprocal(), best == token))
    if not parts:
        empty = logits.new_zeros(0, dtype=_wide(logits))
        return Predictions(empty, empty, empty, empty.bool())
    return Predictions(*(torch.cat(column) for column in zip(*parts, strict=True)))


@torch.no_grad()
def reference(logits: Float[Tensor, "batch pos vocab"], targets: Targets) -> Reference:
    """The distribution of every target, for :func:`divergence`."""
    count = len(targets.token)
    probabilities = logits.new_empty(count, logits.shape[-1], dtype=_wide(logits))
    cross_entropy = probabilities.new_empty(count)
    entropy = probabilities.new_empty(count)
    for rows, where in chunks(logits, targets):
        shifted = rows.sub_(rows.amax(-1, keepdim=True))
        weights = torch.exp(shifted, out=probabilities[where])
        total = weights.sum(-1)
        weights.div_(total[:, None])
        log_total = total.log()
        chosen = shifted.gather(-1, targets.token[where][:, None])[:, 0]
        cross_entropy[where] = log_total - chosen
        entropy[where] = log_total - shifted.mul_(weights).sum(-1)
    return Reference(probabilities, cross_entropy, entropy)


@torch.no_grad()
def divergence(
    intact: Reference, logits: Float[Tensor, "batch pos vocab"], targets: Targets
) -> tuple[Float[Tensor, " token"], Float[Tensor, " token"]]:
    """Cross-entropy of ``logits`` and ``KL(intact || logits)`` of every target, nats."""
    cross_entropy = torch.empty_like(intact.cross_entropy)
    kl = torch.empty_like(intact.entropy)
    for rows, where in chunks(logits, targets):
        shifted = rows.sub_(rows.amax(-1, keepdim=True))
        weights = shifted.exp()
        log_total = weights.sum(-1).log()
        chosen = shifted.gather(-1, targets.token[where][:, None])[:, 0]
        cross_entropy[where] = log_total - chosen
        expected = torch.mul(intact.probabilities[where], shifted, out=weights).sum(-1)
        kl[where] = log_total - expected - intact.entropy[where]
    return cross_entropy, kl


def chunks(
    logits: Float[Tensor, "batch pos vocab"], targets: Targets
) -> Iterator[tuple[Float[Tensor, "chunk vocab"], slice]]:
    """Fresh upcast copies of the targets' logits, and which targets they belong to."""
    flat = logits.flatten(0, 1)
    rows = targets.sequence * logits.shape[1] + targets.position
    size = max(1, CHUNK_ELEMENTS // logits.shape[-1])
    for start in range(0, len(rows), size):
        where = slice(start, start + size)
        yield flat.index_select(0, rows[where]).to(_wide(logits)), where


def _wide(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)
