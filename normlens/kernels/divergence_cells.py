"""The classes that ``divergence`` sums over, as one row of cells."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from normlens.kernels.token_classes import (
    CONTEXTS,
    FREQUENCIES,
    KINDS,
    contexts,
    frequencies,
    kinds,
)
from normlens.text.sequences import Sequences

GROUPS = ("first", "rest")
CLASSES = {"kind": KINDS, "context": CONTEXTS, "frequency": FREQUENCIES}


@dataclass(frozen=True)
class Cells:
    """Every predicted token's cell in every partition; cells of all partitions in one row.

    Attributes:
        index: cell of the token after each position, ``[partition sequence pos-1]``.
        starts: first cell of each partition: ``group``, ``kind``, ``context``,
            ``frequency``, ``position``.
        size: number of cells.
        bounds: first and last predicting position of each position cell.
    """

    index: Int[Tensor, "partition sequence target"]
    starts: dict[str, int]
    size: int
    bounds: tuple[tuple[int, int], ...]


def cells_of(sequences: Sequences, tokenizer: PreTrainedTokenizerBase) -> Cells:
    """The cells of a corpus; positions are 0, 1, 2-3, 4-7, ... up to the longest sequence."""
    bounds = _bounds(int(sequences.lengths.max()) - 1)
    position = torch.arange(sequences.ids.shape[1] - 1)
    group = (position > 0).long().expand(len(sequences), -1)
    # Positions past the longest sequence predict nothing; they get the last cell.
    binned = torch.log2(position.clamp(min=1).double()).floor().long() + (position > 0)
    binned = binned.clamp(max=len(bounds) - 1).expand(len(sequences), -1)
    partitions = {
        "group": (group, len(GROUPS)),
        "kind": (kinds(sequences, tokenizer), len(KINDS)),
        "context": (contexts(sequences), len(CONTEXTS)),
        "frequency": (frequencies(sequences), len(FREQUENCIES)),
        "position": (binned, len(bounds)),
    }
    starts: dict[str, int] = {}
    size = 0
    for name, (_, count) in partitions.items():
        starts[name] = size
        size += count
    index = torch.stack([classes + starts[name] for name, (classes, _) in partitions.items()])
    return Cells(index, starts, size, bounds)


def _bounds(predicting: int) -> tuple[tuple[int, int], ...]:
    found = [(0, 0)]
    low = 1
    while low < predicting:
        found.append((low, min(2 * low, predicting) - 1))
        low *= 2
    return tuple(found)
