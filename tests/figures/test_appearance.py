"""Another page, another depth axis: what changes and what must not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from normlens import catalog, figures
from normlens.figures import theme
from normlens.figures.appearance import dressed, relative_depth
from normlens.figures.declared import meaning
from normlens.figures.selecting import clickable, picked
from tests.synthetic_results import FOUR, Model, result

PAIR = [FOUR[0], Model("deep", "scale_free", "books-ln", layers=5, seed=3)]
LAYERS = {"books-ln": 3, "deep": 5}


def colours(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("template", "customdata", "text", "meta"):
                yield from colours(item)
    elif isinstance(value, list):
        for item in value:
            yield from colours(item)
    elif isinstance(value, str):
        yield value


def spec(figure: go.Figure) -> dict[str, Any]:
    return json.loads(figure.to_json() or "")


@pytest.mark.parametrize("analysis", [a.name for a in catalog.ALL])
def test_nothing_keeps_the_ink_of_a_light_page(analysis: str) -> None:
    for figure in figures.of(result(analysis, FOUR[:2])).values():
        dark = dressed(figure, dark=True)
        assert not set(colours(spec(dark))) & {theme.INK, theme.QUIET}
        assert dark.layout.template.layout.font.color == theme.DARK[theme.INK]
        assert spec(dressed(dark, dark=False)) == spec(figure)


def test_the_diamond_of_the_waterfall_changes_with_the_page_and_models_do_not() -> None:
    figure = figures.draw(result("prompt-attribution", FOUR[:1]), "prompt_attribution:waterfall")
    bars, diamond = dressed(figure, dark=True).data
    assert figure.data[1].marker.line.color == theme.INK
    assert diamond.marker.line.color == theme.DARK[theme.INK]
    assert bars.increasing.marker.color == "#0072B2"


def test_data_that_looks_like_a_colour_stays() -> None:
    figure = go.Figure(go.Scatter(x=[1], y=[1], customdata=[["#ffffff"]], text=["#1f2328"]))
    trace = dressed(figure, dark=True).data[0]
    assert (trace.customdata[0][0], trace.text[0]) == ("#ffffff", "#1f2328")


def relative(analysis: str, name: str, models: list[Model] = PAIR) -> go.Figure:
    found = relative_depth(figures.draw(result(analysis, models), name), LAYERS)
    assert found is not None
    return found


def test_blocks_lie_in_the_middle_of_their_share_and_points_at_its_ends() -> None:
    turning = relative("residual", "residual:turning", [FOUR[0]])
    assert turning.data[0].x == pytest.approx([1 / 6, 3 / 6, 5 / 6])
    growth = relative("residual", "residual:growth", [FOUR[0]])
    assert growth.data[0].x == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert growth.layout.xaxis2.title.text == "share of depth"


def test_models_of_other_depth_meet_at_both_ends() -> None:
    figure = relative("scale", "scale:by_site")
    lines = [t for t in figure.data if t.mode == "lines+markers" and t.yaxis == "y"]
    ends = [[x for x, y in zip(t.x, t.y, strict=True) if math.isfinite(y)] for t in lines]
    assert [found[-1] for found in ends] == [1.0, 1.0]
    assert ends[0][:2] == pytest.approx([0.25 / 3, 0.75 / 3])
    assert ends[1][:2] == pytest.approx([0.25 / 5, 0.75 / 5])
    assert lines[0].connectgaps
    assert not lines[1].connectgaps
    header = figure.layout.title.text
    assert "aligned by share of depth" in header
    assert "absolute layer" not in header


def test_ribbons_follow_their_model() -> None:
    figure = relative("scale", "scale:by_site")
    ribbon = next(t for t in figure.data if t.fill == "toself")
    assert ribbon.x[:2] == pytest.approx([0.25 / 3, 0.75 / 3])


def test_maps_of_other_depth_fill_the_same_axis() -> None:
    figure = relative("attention-entropy", "attention_entropy:entropy_map")
    shallow, deep = (t for t in figure.data if isinstance(t, go.Heatmap) and t.coloraxis)
    assert shallow.y == pytest.approx([1 / 6, 3 / 6, 5 / 6])
    assert deep.y == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    for axis in (figure.layout.yaxis, figure.layout.yaxis2):
        assert axis.range == pytest.approx((0, 1))


def test_the_pointer_still_tells_the_layer_and_a_click_selects_it() -> None:
    figure = relative("attention-entropy", "attention_entropy:entropy_map", [FOUR[0]])
    cells = next(t for t in figure.data if isinstance(t, go.Heatmap) and t.coloraxis)
    assert cells.hovertemplate.startswith("L%{customdata[0]}.H%{x}")
    assert [row[0][0] for row in cells.customdata] == [0, 1, 2]
    for prepared in (clickable(figure), relative_depth(clickable(figures.draw(
        result("attention-entropy", FOUR[:1]), "attention_entropy:entropy_map")), LAYERS),
    ):  # fmt: skip
        assert prepared is not None
        overlay = prepared.data[-1]
        assert overlay.y[5] == pytest.approx(0.5)
        selection = picked({"customdata": np.asarray(overlay.customdata)[5].tolist()})
        assert (selection.layer, selection.head) == (1, 1)


def test_figures_without_a_depth_axis_or_with_unknown_models_have_no_relative_form() -> None:
    assert relative_depth(figures.draw(result("output"), "output:loss"), LAYERS) is None
    growth = figures.draw(result("residual", PAIR), "residual:growth")
    assert relative_depth(growth, {"books-ln": 3}) is None
    assert relative_depth(growth, {"books-ln": 3, "deep": 0}) is None
    stray = go.Figure(growth).add_scatter(x=[1], y=[1], xaxis="x", yaxis="y")
    assert relative_depth(stray, LAYERS) is None
    assert relative_depth(go.Figure(go.Bar(y=[1], meta=meaning(x="head"))), LAYERS) is None
