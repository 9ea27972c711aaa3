"""Curves of training runs: finished, growing, empty, long."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from normlens.figures.training import MOST_POINTS, training_curves


def log(steps: int, **columns: float) -> pd.DataFrame:
    step = np.arange(steps)
    return pd.DataFrame({"step": step, "loss": 8 - 0.01 * step, "lr": 2e-3, **columns})


def test_held_out_losses_are_drawn_where_they_were_measured() -> None:
    run = log(6).assign(held_out_loss=[math.nan, math.nan, 5.0, 5.0, 5.0, 4.5])
    _, points = (t for t in training_curves({"run": run}).data if t.yaxis == "y")
    assert list(points.x) == [2, 5]
    assert list(points.y) == [5.0, 4.5]


def test_only_panels_that_some_run_has_numbers_for() -> None:
    titles = [a.text for a in training_curves({"a": log(3, auxiliary=0.0)}).layout.annotations]
    assert titles == ["loss", "learning rate"]
    runs = {"a": log(3, live_scales=0), "b": log(3, auxiliary=0.1, live_scales=2)}
    figure = training_curves(runs)
    titles = [a.text for a in figure.layout.annotations]
    assert titles == ["loss", "auxiliary loss", "live scales", "learning rate"]
    assert {t.name for t in figure.data if t.yaxis == "y3"} == {"b"}


def test_a_run_that_removes_norms_has_the_colour_of_scale_free_models() -> None:
    runs = {"plain": log(3, live_scales=0), "removal": log(3, live_scales=2)}
    colours = {t.name: t.line.color for t in training_curves(runs).data}
    assert colours == {"plain": "#0072B2", "removal": "#D55E00"}


def test_long_runs_are_averaged_and_say_so() -> None:
    run = log(5 * MOST_POINTS)
    figure = training_curves({"run": run})
    assert len(figure.data[0].x) == MOST_POINTS
    assert figure.data[0].y[0] == pytest.approx(run["loss"][:5].mean())
    assert figure.data[0].x[0] == 4
    assert "equal stretches" in figure.layout.title.text
    assert "equal stretches" not in training_curves({"run": log(9)}).layout.title.text


@pytest.mark.parametrize("runs", [{}, {"run": log(0)}])
def test_no_step_yet_is_said(runs: dict[str, pd.DataFrame]) -> None:
    figure = training_curves(runs)
    assert not figure.data
    assert "No run has written a step yet" in figure.layout.title.text


def test_names_are_escaped() -> None:
    figure = training_curves({"<b>$x$": log(2)})
    assert figure.data[0].name == "&lt;b&gt;&#36;x&#36;"
