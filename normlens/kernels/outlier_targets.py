"""What ``outlier-ablation`` ablates, from the statistics of ``outliers``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.kernels.outlier_features import CRITERIA
from normlens.kernels.outlier_massive import massive_entries, sequence_medians
from normlens.kernels.outlier_statistics import GROUPS, Statistics
from normlens.kernels.outlier_views import Basis
from normlens.text.sequences import Batch

FIRST, REST = (GROUPS.index(group) for group in ("first", "rest"))


@dataclass(frozen=True)
class Entry:
    """A dimension of the residual stream at one depth, at the tokens where it spikes."""

    depth: int
    dimension: int


@dataclass(frozen=True)
class Targets:
    """What is ablated, and in words how it was chosen.

    Attributes:
        dimensions: the outlier dimensions.
        dimensions_words: by what.
        entries: massive activations, or what stands in for them.
        massive: whether the entries are massive activations.
        entries_words: which.
    """

    dimensions: tuple[int, ...]
    dimensions_words: str
    entries: tuple[Entry, ...]
    massive: bool
    entries_words: str


def choose(found: Statistics, criterion: str, most: int) -> Targets:
    """At most ``most`` outlier dimensions, and at most as many massive ones.

    Outliers by layer share; massive dimensions by their largest ratio to the median, each at
    the first depth that has one.
    """
    features = found.features(Basis.NATIVE, CRITERIA.index(criterion), REST)
    ranked = [] if features is None else features.ranked(most)
    outliers = [j for j in ranked if features is not None and bool(features.outlier[j])][:most]
    words = f"outlier dimensions ({criterion})"
    if not outliers:
        outliers = found.top_dimensions(REST)[:1]
        words = "largest mean square; none meets the criterion"
    entries = _massive(found, most)
    if entries:
        return Targets(tuple(outliers), words, entries, True, f"massive; {_places(entries)}")
    stand_in = _stand_in(found)
    told = f"no massive activation; first token's largest; {_places((stand_in,))}"
    return Targets(tuple(outliers), words, (stand_in,), False, told)


def _places(entries: Sequence[Entry]) -> str:
    return ", ".join(f"dimension {e.dimension} at depth {e.depth}" for e in entries)


def _massive(found: Statistics, most: int) -> tuple[Entry, ...]:
    count = found.tensor("massive").sum(0)  # [point d]
    ratio = found.tensor("massive_ratio").amax((0, 1))
    dimensions = count.sum(0).nonzero().flatten().tolist()
    dimensions.sort(key=lambda j: (-float(ratio[j]), j))
    return tuple(Entry(int(count[:, j].nonzero()[0]), j) for j in dimensions[:most])


def _stand_in(found: Statistics) -> Entry:
    depth = int(found.tensor("ratio")[FIRST, :-1].argmax())
    return Entry(depth, int(found.tensor(f"largest.{FIRST}.{depth}")[0, 3]))


def entry_masks(
    x: Float[Tensor, "batch pos d"],
    entries: Sequence[Entry],
    batch: Batch,
    *,
    massive: bool,
    threshold: float,
    ratio: float,
) -> Bool[Tensor, "entry batch pos"]:
    """At which tokens each entry of one depth is to be set."""
    if not massive:
        return batch.first.expand(len(entries), *batch.first.shape)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    magnitude = x.abs()
    medians = sequence_medians(magnitude, batch.mask)
    tokens, hits = massive_entries(magnitude, medians, batch.mask, threshold, ratio)
    masks = batch.mask.new_zeros(len(entries), *batch.mask.shape)
    row, position = tokens.unbind(-1)
    for mask, entry in zip(masks, entries, strict=True):
        mask[row, position] = hits[:, entry.dimension]
    return masks
