"""Sequences -> batches on the model's device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from normlens.text.sequences import Batch, Sequences


def batches(
    sequences: Sequences, start: int, stop: int, *, size: int, device: str, weights: Tensor
) -> Iterator[Batch]:
    """Batches of rows ``start`` to ``stop``; ``weights`` is ``[replicate document]``.

    A batch is cut to its longest sequence, so padding costs nothing where it can be
    avoided.
    """
    for low in range(start, stop, size):
        rows = slice(low, min(low + size, stop))
        lengths = sequences.lengths[rows]
        width = int(lengths.max())
        mask = torch.arange(width)[None, :] < lengths[:, None]
        first = torch.zeros_like(mask)
        first[:, 0] = True
        document = sequences.document[rows]
        yield Batch(
            ids=sequences.ids[rows, :width].to(device),
            mask=mask.to(device),
            first=first.to(device),
            rest=(mask & ~first).to(device),
            index=torch.arange(rows.start, rows.stop),
            document=document,
            weights=weights[:, document],
        )
