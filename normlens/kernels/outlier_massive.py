"""Massive activations: entries of the residual stream far beyond the typical one.

An entry ``a`` is massive when ``|a| > threshold`` and ``|a| >= ratio * median``, the median
being that of the magnitudes of all real tokens and dimensions of its own sequence at that
depth. (Sun et al. 2024 take the median of the layer's tensor; per sequence it does not
depend on how a corpus is cut into batches.) The median of an even number of magnitudes is
the lower of the middle two.

Source: 2402.17762, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.text.sequences import Batch


def sequence_medians(
    magnitude: Float[Tensor, "batch pos d"], mask: Bool[Tensor, "batch pos"]
) -> Float[Tensor, " batch"]:
    """Median magnitude of every right-padded sequence, real tokens only."""
    lengths = mask.sum(-1).tolist()
    medians = [_median(row[:length]) for row, length in zip(magnitude, lengths, strict=True)]
    return torch.stack(medians)


def _median(values: Float[Tensor, "pos d"]) -> Float[Tensor, ""]:
    if values.device.type != "cpu":
        return values.flatten().median()
    # The same order statistic as torch's, several times faster.
    flat = values.flatten().numpy()
    middle = (len(flat) - 1) // 2
    return torch.tensor(np.partition(flat, middle)[middle], dtype=values.dtype)


def massive_entries(
    magnitude: Float[Tensor, "batch pos d"],
    medians: Float[Tensor, " batch"],
    mask: Bool[Tensor, "batch pos"],
    threshold: float,
    ratio: float,
) -> tuple[Tensor, Tensor]:
    """Tokens with a massive entry as ``[token 2]`` (row, position), and which entries are.

    The second is ``[token d]`` bool. Only tokens whose largest entry is massive are looked
    into.
    """
    lower = ratio * medians[:, None]
    peak = magnitude.amax(-1)
    tokens = ((peak > threshold) & (peak >= lower) & mask).nonzero()
    row, position = tokens.unbind(-1)
    entries = magnitude[row, position]
    return tokens, (entries > threshold) & (entries >= lower[row])


def magnitude_reduction(
    x: Float[Tensor, "batch pos d"], batch: Batch, threshold: float, ratio: float
) -> Mapping[str, Tensor]:
    """What ``outliers`` keeps of the magnitudes at one point of the residual stream.

    Returns:
        ``peak`` ``[2 batch pos]``: signed value and dimension of each token's largest entry.
        ``median`` ``[batch]``.
        ``massive`` ``[group 4 d]``: count, largest and smallest value, largest ratio of the
        massive entries of first tokens and of the rest; infinities where there is none.
        ``positions`` ``[group pos]``: massive entries at each position.
    """
    magnitude = x.abs()
    dimension = magnitude.argmax(-1)
    signed = x.gather(-1, dimension[..., None])[..., 0]
    medians = sequence_medians(magnitude, batch.mask)
    tokens, massive = massive_entries(magnitude, medians, batch.mask, threshold, ratio)
    row, position = tokens.unbind(-1)
    values = x[row, position]
    relative = values.abs() / medians[row, None]
    first = batch.first[row, position]
    summaries: list[Tensor] = []
    places: list[Tensor] = []
    for members in (first, ~first):
        hit = massive & members[:, None]
        summaries.append(
            torch.stack(
                [
                    hit.sum(0).to(x.dtype),
                    _amax(torch.where(hit, values, -torch.inf)),
                    -_amax(torch.where(hit, -values, -torch.inf)),
                    _amax(torch.where(hit, relative, -torch.inf)),
                ]
            )
        )
        places.append(torch.bincount(position, hit.sum(-1).double(), batch.ids.shape[1]))
    return {
        "peak": torch.stack([signed, dimension.to(x.dtype)]),
        "median": medians,
        "massive": torch.stack(summaries),
        "positions": torch.stack(places),
    }


def _amax(values: Float[Tensor, "token d"]) -> Float[Tensor, " d"]:
    """Largest of each column, minus infinity without rows."""
    lowest = values.new_full((1, values.shape[1]), -torch.inf)
    return torch.cat([values, lowest]).amax(0)
