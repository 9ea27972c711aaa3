"""States merge to the same numbers in any grouping and survive the disk."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normlens.capture.state import Reduction, State
from normlens.capture.statistics import (
    QUANTILE_RELATIVE_ERROR,
    interval,
    log_histogram,
    log_quantile,
    poisson_weights,
)
from normlens.errors import StoreMismatch


def empty() -> State:
    state = State()
    state.declare("sum", torch.zeros(2, dtype=torch.float64))
    state.declare("count", torch.zeros((), dtype=torch.int64))
    state.declare("max", torch.full((2,), -torch.inf, dtype=torch.float64), Reduction.MAX)
    state.declare("min", torch.full((2,), torch.inf, dtype=torch.float64), Reduction.MIN)
    state.declare("rows", torch.zeros(0, 2, dtype=torch.float64), Reduction.ROWS)
    state.declare("top", torch.zeros(0, 2, dtype=torch.float64), Reduction.TOP, limit=3)
    return state


def fill(state: State, values: torch.Tensor, start: int) -> None:
    for offset, value in enumerate(values):
        pair = torch.stack([value, -value])
        state.add("sum", pair)
        state.add("count", torch.tensor(1))
        state.add("max", pair)
        state.add("min", pair)
        row = torch.stack([value, torch.tensor(float(start + offset), dtype=value.dtype)])
        state.add("rows", row[None])
        state.add("top", row[None])


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=12), st.integers(0, 12))
def test_any_split_gives_the_same_state(values: list[int], cut: int) -> None:
    numbers = torch.tensor(values, dtype=torch.float64)
    whole, left, right = empty(), empty(), empty()
    fill(whole, numbers, 0)
    fill(left, numbers[:cut], 0)
    fill(right, numbers[cut:], min(cut, len(values)))
    left.merge(right)
    for name, value in whole.tensors.items():
        assert left.tensors[name].equal(value), name
    top = whole.tensors["top"]
    best = sorted(((-v, i) for i, v in enumerate(values)))[:3]
    assert [(-float(v), int(i)) for v, i in top] == [(float(v), i) for v, i in best]


def test_disk_round_trip_and_refusals(tmp_path: Path) -> None:
    state = empty()
    fill(state, torch.tensor([1.0, 3.0], dtype=torch.float64), 0)
    path = tmp_path / "shard.safetensors"
    state.save(path, {"key": "k"})
    again = State.load(path, {"key": "k"})
    again.merge(state)
    assert again.tensors["count"].item() == 4
    assert len(again.tensors["top"]) == 3
    with pytest.raises(StoreMismatch, match="another computation"):
        State.load(path, {"key": "other"})
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(StoreMismatch, match="unreadable"):
        State.load(path, {"key": "k"})


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_quantiles_are_within_half_a_bin(values: list[float], level: float) -> None:
    histogram = log_histogram(torch.tensor(values, dtype=torch.float64))
    exact = sorted(values)[max(1, math.ceil(level * len(values))) - 1]
    assert log_quantile(histogram, level) == pytest.approx(
        exact, rel=QUANTILE_RELATIVE_ERROR * 1.01
    )


def test_no_data_has_no_quantile() -> None:
    assert torch.isnan(torch.tensor(log_quantile(log_histogram(torch.zeros(0)), 0.5)))


def test_bootstrap_weights_follow_the_document_alone() -> None:
    a = poisson_weights(("x", "y"), seed=3)
    b = poisson_weights(("y", "z", "x"), seed=3)
    assert a[:, 0].equal(b[:, 2])
    assert a[:, 1].equal(b[:, 0])
    assert not a[:, 0].equal(a[:, 1])
    assert not a.equal(poisson_weights(("x", "y"), seed=4))
    assert a.mean().item() == pytest.approx(1.0, abs=0.1)


def test_interval_covers_and_refuses() -> None:
    low, high = interval(torch.arange(1001, dtype=torch.float64))
    assert (low, high) == pytest.approx((25.0, 975.0))
    low, _ = interval(torch.full((10,), torch.nan, dtype=torch.float64))
    assert low != low
