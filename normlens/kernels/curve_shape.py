"""How a curve bends: its odd part against the slope it has in the middle.

    m(a)    mean of y sign(x) over the elements with |x| near a, which leaves out the even part
    slope   of least squares through 0, over the half of the elements with the smallest |x|
    bend    mean of y sign(x) / (slope * mean |x|) over a range of |x|: 1 where the curve goes
            on straight, below 1 where it flattens

Ranges of |x| are quantile ranges of the elements; a bin belongs to the range that holds its
middle element, so a range starts and ends at the edge of a bin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normlens.kernels.curve_bins import MAGNITUDES, Curve, bin_edges

LEVELS = (0.5, 0.9, 0.99, 0.999)
RANGES = ("0–50 %", "50–90 %", "90–99 %", "99–99.9 %", "99.9–100 %")
TAIL = RANGES[-1]
ENOUGH = 30
"""Elements it takes to say that the curve has bent."""


@dataclass(frozen=True)
class Extent:
    """Where a curve is straight.

    Attributes:
        to: up to which ``|x|``; the largest where it never bends.
        share: of the elements with an ``|x|`` up to there.
    """

    to: float
    share: float


def ranges_of(curve: Curve) -> NDArray[np.int64]:
    """For every bin of ``|x|`` the index of its quantile range."""
    counts = curve.counts
    middle = (counts.cumsum() - counts / 2) / max(curve.n, 1)
    return np.searchsorted(np.array(LEVELS), middle, side="right")


def middle_slope(curve: Curve) -> float:
    """Least-squares slope through 0 over the half of the elements with the smallest ``|x|``."""
    totals = curve.within(ranges_of(curve) == 0).totals
    # One bin can hold most of the elements, and then no range of its own.
    totals = totals if totals["xx"] > 0 else curve.totals
    return totals["xy"] / totals["xx"] if totals["xx"] > 0 else math.nan


def bend(curve: Curve, slope: float) -> float:
    """Mean of ``y sign(x)`` over ``slope * mean |x|``; 1 where the curve is straight."""
    return float(curve.outputs.sum() / (slope * curve.magnitudes.sum()))


def straight_extent(curve: Curve, slope: float, deviation: float) -> Extent:
    """From the median of ``|x|`` outwards, up to where the curve stays within ``deviation``.

    Neighbouring bins are taken together until they hold enough elements. The curve has bent
    at the first of two such groups in a row, or at the last one, where
    ``|m(a) / (slope a) - 1| > deviation``.
    """
    starts = _groups(curve)
    ends = [*starts[1:], MAGNITUDES]
    parts = [np.s_[start:end] for start, end in zip(starts, ends, strict=True)]
    counts, outputs, magnitudes = curve.counts, curve.outputs, curve.magnitudes
    ratios = np.array([outputs[p].sum() / (slope * magnitudes[p].sum()) for p in parts])
    bent = np.abs(ratios - 1) > deviation
    # The last group has no other behind it.
    lasting = np.flatnonzero(bent & np.append(bent[1:], True))
    if not len(lasting):
        return Extent(_largest(curve), 1.0)
    first = starts[lasting[0]]
    return Extent(float(bin_edges()[first]), float(counts[:first].sum() / counts.sum()))


def _groups(curve: Curve) -> list[int]:
    """First bins of groups of neighbours with enough elements, from the median outwards."""
    outer = np.flatnonzero((curve.counts > 0) & (ranges_of(curve) > 0))
    starts: list[int] = []
    held = ENOUGH
    for index in outer.tolist():
        if held >= ENOUGH:
            starts.append(index)
            held = 0
        held += int(curve.counts[index])
    # Too few at the end are counted with the group before them.
    return starts[:-1] if held < ENOUGH and len(starts) > 1 else starts


def range_ends(curve: Curve, chosen: NDArray[np.bool_]) -> tuple[float, float]:
    """Edges of the bins of ``|x|`` with elements among the chosen ones."""
    filled = np.flatnonzero(chosen & (curve.counts > 0))
    if not len(filled):
        return math.nan, math.nan
    edges = bin_edges()
    return float(edges[filled[0]]), float(edges[filled[-1] + 1])


def _largest(curve: Curve) -> float:
    """Upper edge of the last bin with elements."""
    return range_ends(curve, np.ones(MAGNITUDES, dtype=bool))[1]
