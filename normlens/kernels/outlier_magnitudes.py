"""Residual stream of ``outliers``: norms, largest entries, massive activations.

Per point and token group, from what :mod:`outlier_massive` keeps of each batch.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.capture.protocol import Observed
from normlens.capture.state import Reduction, State
from normlens.capture.statistics import BIN_COUNT, log_histogram
from normlens.text.sequences import Batch

GROUPS = 2


def declare_magnitudes(state: State, points: int, width: int, positions: int) -> None:
    """Add the statistics, all neutral."""
    state.declare("raw", torch.zeros(GROUPS, points, width, dtype=torch.float64))
    state.declare("norm", torch.zeros(GROUPS, points, dtype=torch.float64))
    state.declare("histogram", torch.zeros(GROUPS, points, BIN_COUNT, dtype=torch.int64))
    state.declare("largest_dimension", torch.zeros(GROUPS, points, width, dtype=torch.int64))
    state.declare("median", torch.zeros(points, dtype=torch.float64))
    state.declare("sequences", torch.zeros(points, dtype=torch.int64))
    state.declare(
        "ratio", torch.full((GROUPS, points), -math.inf, dtype=torch.float64), Reduction.MAX
    )
    state.declare("massive", torch.zeros(GROUPS, points, width, dtype=torch.int64))
    for name in ("massive_high", "massive_ratio"):
        lowest = torch.full((GROUPS, points, width), -math.inf, dtype=torch.float64)
        state.declare(name, lowest, Reduction.MAX)
    highest = torch.full((GROUPS, points, width), math.inf, dtype=torch.float64)
    state.declare("massive_low", highest, Reduction.MIN)
    state.declare("positions", torch.zeros(positions, dtype=torch.int64))
    for group in range(GROUPS):
        for point in range(points):
            none = torch.zeros(0, 6, dtype=torch.float64)
            state.declare(f"largest.{group}.{point}", none, Reduction.TOP, limit=1)


def add_magnitudes(
    state: State,
    points: list[str],
    batch: Batch,
    observed: Observed,
    members: Bool[Tensor, "2 batch pos"],
) -> None:
    """Add one batch.

    Args:
        state: with the declarations of :func:`declare_magnitudes`.
        points: names of the points of the residual stream.
        batch: what was run.
        observed: what the pass kept of it.
        members: first tokens, and the rest.
    """
    kept = [observed.reduced[point] for point in points]
    finite = torch.stack([k["finite"] for k in kept]).cpu()  # [point batch pos]
    usable = finite & members[:, None]  # [group point batch pos]
    square = torch.stack([k["native/tokens"][2] for k in kept]).cpu().double()
    norm = (square * state.tensors["raw"].shape[-1]).sqrt()
    peak, dimension = torch.stack([k["peak"] for k in kept], 1).cpu().double()
    medians = torch.stack([k["median"] for k in kept]).cpu().double()  # [point batch]
    ratio = peak.abs() / medians.clamp_min(torch.finfo(torch.float64).tiny)[..., None]
    state.add("raw", torch.stack([k["raw"] for k in kept], 1).double())
    state.add("norm", torch.where(usable, norm, 0.0).sum((-1, -2)))
    state.add("histogram", _histograms(norm, usable))
    state.add("largest_dimension", _counts(dimension, usable, state.tensors["raw"].shape[-1]))
    state.add("median", medians.sum(-1))
    state.add("sequences", torch.full_like(state.tensors["sequences"], len(batch.index)))
    state.add("ratio", torch.where(usable, ratio, -math.inf).amax((-1, -2)))
    massive = torch.stack([k["massive"] for k in kept], 1).cpu().double()  # [group point 4 d]
    state.add("massive", massive[:, :, 0].round().long())
    for i, name in enumerate(("massive_high", "massive_low", "massive_ratio"), start=1):
        state.add(name, massive[:, :, i])
    positions = torch.stack([k["positions"] for k in kept]).cpu().sum((0, 1)).round().long()
    padded = torch.zeros_like(state.tensors["positions"])
    padded[: len(positions)] = positions
    state.add("positions", padded)
    for group in range(GROUPS):
        for i in range(len(points)):
            rows = _largest(batch, usable[group, i], peak[i], dimension[i])
            state.add(f"largest.{group}.{i}", rows)


def _histograms(norm: Tensor, usable: Bool[Tensor, "2 point batch pos"]) -> Tensor:
    return torch.stack(
        [
            torch.stack([log_histogram(n[u]) for n, u in zip(norm, group, strict=True)])
            for group in usable
        ]
    )


def _counts(dimension: Tensor, usable: Bool[Tensor, "2 point batch pos"], width: int) -> Tensor:
    """How many tokens have their largest entry in each dimension, ``[group point d]``."""
    whole = dimension.long()
    return torch.stack(
        [
            torch.stack(
                [torch.bincount(d[u], minlength=width) for d, u in zip(whole, group, strict=True)]
            )
            for group in usable
        ]
    )


def _largest(
    batch: Batch, usable: Bool[Tensor, "batch pos"], peak: Tensor, dimension: Tensor
) -> Float[Tensor, "row 6"]:
    """Row of the largest entry: magnitude, place in the corpus, value, dimension, position, id."""
    if not usable.any():
        return torch.zeros(0, 6, dtype=torch.float64)
    flat = torch.where(usable, peak.abs(), -math.inf).flatten().argmax()
    row, position = divmod(int(flat), usable.shape[1])
    value = float(peak[row, position])
    place = int(batch.index[row]) * 2**24 + position
    columns = [abs(value), place, value, float(dimension[row, position]), position]
    return torch.tensor([[*columns, int(batch.ids[row, position])]], dtype=torch.float64)
