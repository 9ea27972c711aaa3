"""Driving a kernel by hand: lenses, corpora, batches, observations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from normlens.capture.batches import batches
from normlens.capture.forward import observe
from normlens.capture.protocol import Context, Finding, Observed, Procedure, Streaming
from normlens.capture.state import State
from normlens.capture.statistics import poisson_weights
from normlens.capture.tree import plain_tree
from normlens.catalog import Need
from normlens.models.build import build_lens
from normlens.models.identity import config_sha256, weights_sha256
from normlens.models.lens import Identity, Lens, Lineage
from normlens.text.sequences import Batch, Sequences

REPLICATES = 40
SEED = 5
VOCABULARY = 61

Observe = Callable[[Batch], Observed]


def lens_of(
    model: PreTrainedModel, name: str = "toy", tokenizer: PreTrainedTokenizerBase | None = None
) -> Lens:
    """A verified lens around the model itself."""
    identity = Identity(name, "memory", weights_sha256(model), config_sha256(model.config))
    return build_lens(model, tokenizer, identity, Lineage())


def sequences_of(
    rows: Sequence[Sequence[int]],
    documents: Sequence[int] | None = None,
    *,
    pad_id: int = 0,
    extra: int = 0,
) -> Sequences:
    """A corpus from rows of ids; ``extra`` more padded positions than needed."""
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), int(lengths.max()) + extra), pad_id)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    document = torch.tensor(documents if documents is not None else range(len(rows)))
    names = tuple(f"document {i}" for i in range(int(document.max()) + 1))
    return Sequences(ids, lengths, document, names, "toy corpus", "none", pad_id, "0")


def random_rows(seed: int = 0, lengths: Sequence[int] = (9, 4, 12, 7, 2)) -> list[list[int]]:
    """Rows of random ids below :data:`VOCABULARY`."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def context_of(lens: Lens, parameters: Any, sequences: Sequences) -> Context:
    return Context(lens, parameters, sequences, REPLICATES)


def bootstrap(sequences: Sequences) -> Tensor:
    """Weights ``[replicate document]``."""
    return poisson_weights(sequences.document_ids, SEED, REPLICATES)


def cut(sequences: Sequences, size: int) -> list[Batch]:
    """The batches of a pass."""
    weights = bootstrap(sequences)
    return list(batches(sequences, 0, len(sequences), size=size, device="cpu", weights=weights))


def observing(lens: Lens, *needs: Need) -> Observe:
    """Observations of the plain model."""
    return lambda batch: observe(plain_tree(lens), batch, frozenset(needs))


def stream(kernel: Streaming, context: Context, look: Observe, *, size: int = 2) -> Finding:
    """One pass, every batch reduced into a State of its own before merging."""
    total = kernel.init(context)
    for batch in cut(context.sequences, size):
        part = kernel.init(context)
        kernel.update(part, batch, look(batch), context)
        total.merge(part)
    return kernel.finish(total, context)


def proceed(kernel: Procedure, context: Context, *, size: int = 2) -> Finding:
    """A procedure over batches of ``size``."""

    def map_shards(label: str, sequences: Sequences, compute: Callable[[Batch], State]) -> State:
        total, *parts = [compute(batch) for batch in cut(sequences, size)]
        for part in parts:
            total.merge(part)
        return total

    return kernel.run(context, map_shards)
