"""Figures of ``attention-entropy``: what is subtracted, stacked and left out."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import plotly.graph_objects as go
import pytest

from normlens.figures import attention_entropy
from normlens.results import Result
from tests.synthetic_results import FOUR, Model, result

RELATED, STRANGER = [FOUR[0], FOUR[3]], Model("stranger", seed=7)


def found(models: list[Model]) -> Result:
    return result("attention-entropy", models)


def maps(figure: go.Figure, axis: str) -> list[go.Heatmap]:
    return [t for t in figure.data if isinstance(t, go.Heatmap) and t.coloraxis == axis]


def test_related_models_are_subtracted_head_by_head() -> None:
    figure = attention_entropy.entropy_map(found(RELATED))
    first, second = maps(figure, "coloraxis")
    (difference,) = maps(figure, "coloraxis2")
    np.testing.assert_allclose(difference.z, np.array(second.z) - np.array(first.z))
    assert figure.layout.coloraxis2.cmin == -figure.layout.coloraxis2.cmax
    assert "books-lnfree − books-ln" in [a.text for a in figure.layout.annotations]


@pytest.mark.parametrize(
    "models", [[FOUR[0]], [FOUR[0], STRANGER], [FOUR[0], dataclasses.replace(FOUR[3], heads=6)]]
)
def test_heads_that_are_not_the_same_are_not_subtracted(models: list[Model]) -> None:
    figure = attention_entropy.sinks(found(models))
    assert len(maps(figure, "coloraxis")) == len(models)
    assert not maps(figure, "coloraxis2")
    assert figure.layout.coloraxis2.showscale is False


def test_a_head_without_value_is_grey_and_never_zero() -> None:
    one = found([FOUR[0]])
    table = one.tables["heads"].copy()
    table.loc[5, "normalised"] = math.nan
    figure = attention_entropy.entropy_map(
        dataclasses.replace(one, tables={**one.tables, "heads": table})
    )
    grey, coloured = figure.data
    where = table.loc[5, "layer"], table.loc[5, "head"]
    assert math.isnan(coloured.z[where[0]][where[1]])
    assert grey.z[where[0]][where[1]] == 0
    assert np.isfinite(grey.z).sum() == 1


def test_quarters_stack_to_everything_in_both_modes() -> None:
    figure = attention_entropy.quarters(found(list(FOUR)))
    for axis in ("y", "y2"):
        bars = [bar for bar in figure.data if bar.yaxis == axis]
        assert len(bars) == 4
        assert np.sum([bar.x for bar in bars], 0) == pytest.approx([1] * 4)
    assert [bar.name for bar in figure.data if bar.showlegend is not False] == [
        "0–25 %", "25–50 %", "50–75 %", "75–100 %",
    ]  # fmt: skip


def test_depth_shows_the_ceiling_and_entropy_without_the_sink() -> None:
    one = found([FOUR[0]])
    figure = attention_entropy.by_depth(one)
    traces = {t.name: t for t in figure.data if t.yaxis == "y2"}
    mean = one.tables["heads"].groupby("layer")[["ceiling", "entropy", "rest_entropy"]].mean()
    assert list(traces["ceiling"].y) == pytest.approx(list(mean["ceiling"]))
    assert list(traces["books-ln"].y) == pytest.approx(list(mean["entropy"]))
    assert list(traces["books-ln: without sink"].y) == pytest.approx(list(mean["rest_entropy"]))
