"""Clicks and marks: the right cell, the same picture, nothing from undeclared points."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from normlens import catalog, figures
from normlens.comparison import Selection
from normlens.figures.appearance import dressed, relative_depth
from normlens.figures.declared import coordinates, declared, meaning
from normlens.figures.selecting import MOST_CELLS, clickable, mark, picked
from tests.synthetic_results import FOUR, Model, result

DEEP = Model("deep", layers=5, seed=4)
LAYERS = {"books-ln": 3, "books-lnfree": 3, "deep": 5}


def overlays(figure: go.Figure) -> list[Any]:
    found = []
    for trace in figure.data:
        known = declared(trace)
        if known is not None and known.overlay:
            found.append(trace)
    return found


def maps(figure: go.Figure) -> list[Any]:
    return [t for t in figure.data if isinstance(t, go.Heatmap) and declared(t) is not None]


def click(trace: Any, index: int) -> Selection:
    """What a browser sends for a point, read back."""
    row = spec(go.Figure(trace))["data"][0]["customdata"][index]
    return picked({"curve_number": 0, "point_index": index, "customdata": row})


def spec(figure: go.Figure) -> dict[str, Any]:
    return json.loads(figure.to_json() or "")


@pytest.mark.parametrize("analysis", [a.name for a in catalog.ALL])
@pytest.mark.parametrize(
    "models", [[FOUR[0]], [FOUR[0], DEEP, FOUR[3]]], ids=["one", "other depth and not applicable"]
)
def test_every_figure_can_be_clicked_marked_and_dressed(analysis: str, models: list[Model]) -> None:
    for name, figure in figures.of(result(analysis, models)).items():
        before = spec(figure)
        clicked = clickable(figure)
        expected = [t for t in maps(figure) if np.size(t.z) <= MOST_CELLS]
        assert len(overlays(clicked)) == len(expected), name
        for axis in ("xaxis", "yaxis"):
            ranges = figure.layout[axis].range
            assert ranges is None or ranges == clicked.layout[axis].range
        shown = mark(
            dressed(relative_depth(clicked, LAYERS) or clicked, dark=True),
            Selection(layer=1, head=2, position=3, site="1.pre_mlp", dimension=4),
        )
        assert "NaN" not in (shown.to_json() or "")
        assert spec(figure) == before


@pytest.fixture(name="entropy_map")
def _entropy_map() -> go.Figure:
    return figures.draw(result("attention-entropy", FOUR[:1]), "attention_entropy:entropy_map")


def test_a_click_on_a_cell_selects_its_layer_and_head(entropy_map: go.Figure) -> None:
    (overlay,) = overlays(clickable(entropy_map))
    (cells,) = maps(entropy_map)
    for index in range(cells.z.size):
        layer, head = divmod(index, cells.z.shape[1])
        assert (overlay.x[index], overlay.y[index]) == (head, layer)
        assert click(overlay, index) == Selection(layer=layer, head=head)
        assert overlay.marker.color[index] == np.float32(cells.z[layer][head])
    assert overlay.marker.color.dtype == np.float32


def test_the_overlay_says_what_the_map_said(entropy_map: go.Figure) -> None:
    clicked = clickable(entropy_map)
    (overlay,) = overlays(clicked)
    (cells,) = maps(entropy_map)
    assert overlay.hovertemplate == cells.hovertemplate.replace("%{z:", "%{marker.color:")
    on_axes = [t for t in clicked.data if isinstance(t, go.Heatmap)]
    assert {t.hoverinfo for t in on_axes} == {"skip"}
    assert (overlay.xaxis, overlay.yaxis) == (cells.xaxis, cells.yaxis)


def test_a_cell_without_value_says_so_and_can_be_selected() -> None:
    found = result("attention-entropy", FOUR[:1])
    table = found.tables["heads"].copy()
    table.loc[5, "normalised"] = math.nan
    lost = table.loc[5]
    found = dataclasses.replace(found, tables={**found.tables, "heads": table})
    figure = figures.draw(found, "attention_entropy:entropy_map")
    (overlay,) = overlays(clickable(figure))
    said = [text for text in overlay.hovertemplate if "no value" in text]
    assert said == ["L%{y}.H%{x}: no value<extra></extra>"]
    index = overlay.hovertemplate.index(said[0])
    assert click(overlay, index) == Selection(layer=int(lost["layer"]), head=int(lost["head"]))


def test_details_of_the_map_stay_where_its_hover_text_looks_for_them() -> None:
    figure = figures.draw(result("logit-attribution", FOUR[:1]), "logit_attribution:nmae_heads")
    (overlay,) = overlays(clickable(figure))
    (cells,) = maps(figure)
    assert "%{customdata[1]:.4g}" in overlay.hovertemplate
    row = overlay.customdata[6]
    assert list(row[:2]) == list(cells.customdata.reshape(-1, 2)[6])


def test_positions_and_layers_of_a_prompt() -> None:
    found = result("prompt-attribution", FOUR[:1])
    figure = figures.draw(found, "prompt_attribution:by_position")
    clicked = clickable(figure)
    (overlay,) = overlays(clicked)
    names = list(figure.layout.yaxis.ticktext)
    width = maps(figure)[0].z.shape[1]
    assert click(overlay, names.index("L1.mlp") * width + 4) == Selection(layer=1, position=4)
    assert click(overlay, names.index("embed") * width + 4) == Selection(position=4)
    assert clicked.layout.yaxis.range == (len(names) - 0.5, -0.5)
    assert clicked.layout.xaxis.range == (-0.5, width - 0.5)


def test_a_line_over_sites_selects_site_and_layer() -> None:
    figure = clickable(figures.draw(result("scale", FOUR[:1]), "scale:by_site"))
    line = next(t for t in figure.data if t.mode == "lines+markers")
    assert click(line, 3) == Selection(layer=1, site="1.pre_mlp")
    assert click(line, 6) == Selection(site="final")


def test_the_point_after_the_last_block_selects_no_layer() -> None:
    figure = clickable(figures.draw(result("residual", FOUR[:1]), "residual:growth"))
    assert click(figure.data[0], 2) == Selection(layer=2)
    assert click(figure.data[0], 3) == Selection()


def test_clicking_twice_prepared_is_the_same_and_large_maps_stay(entropy_map: go.Figure) -> None:
    once = clickable(entropy_map)
    assert spec(clickable(once)) == spec(once)
    side = math.isqrt(MOST_CELLS) + 1
    large = go.Figure(go.Heatmap(z=np.zeros((side, side)), meta=meaning(x="head", y="layer")))
    assert len(clickable(large).data) == 1


@pytest.mark.parametrize(
    "customdata",
    [None, [], [0.1, 2, 3], ["select:"], ["select:[1]"], ["select:{", 1], "a", ["4", "0.pre_mlp"]],
)
def test_other_points_select_nothing(customdata: Any) -> None:
    assert picked({"customdata": customdata}) == Selection()
    assert picked({}) == Selection()


def test_typed_rows_and_wrong_values() -> None:
    said = 'select:{"layer":"x","head":2,"site":5,"other":1}'
    assert picked({"customdata": {"0": 0.5, "1": said}}) == Selection(head=2)


def rectangles(figure: go.Figure) -> set[tuple[float, float, float, float]]:
    return {(s.x0, s.x1, s.y0, s.y1) for s in figure.layout.shapes if s.type == "rect"}


def test_marks_go_around_the_cell_or_the_row(entropy_map: go.Figure) -> None:
    assert rectangles(mark(entropy_map, Selection(layer=1, head=2))) == {(1.5, 2.5, 0.5, 1.5)}
    assert rectangles(mark(entropy_map, Selection(layer=1))) == {(-0.5, 3.5, 0.5, 1.5)}
    for nothing in (Selection(), Selection(layer=7), Selection(site="final")):
        assert not mark(entropy_map, nothing).layout.shapes


def test_a_mark_has_a_light_and_a_dark_stroke_and_replaces_the_last(
    entropy_map: go.Figure,
) -> None:
    first = mark(entropy_map, Selection(layer=0, head=0))
    second = mark(first, Selection(layer=1, head=2))
    assert rectangles(second) == {(1.5, 2.5, 0.5, 1.5)}
    assert {s.line.color for s in second.layout.shapes} == {"#ffffff", "#111111"}


def test_models_that_are_set_apart_share_one_line() -> None:
    figure = figures.draw(result("residual", FOUR), "residual:turning")
    assert figure.data[0].x[1] != figure.data[1].x[1]
    marked = mark(figure, Selection(layer=1))
    assert {(s.xref, round(s.x0, 3)) for s in marked.layout.shapes} == {("x", 1.0), ("x2", 1.0)}


def test_a_site_is_marked_where_it_stands_and_a_layer_at_each_of_its_sites() -> None:
    figure = figures.draw(result("scale", FOUR[:1]), "scale:spread_by_site")
    assert {s.x0 for s in mark(figure, Selection(site="1.pre_mlp")).layout.shapes} == {3.0}
    assert {s.x0 for s in mark(figure, Selection(layer=1)).layout.shapes} == {2.0, 3.0}


def test_points_are_ringed_when_all_they_stand_for_is_chosen() -> None:
    figure = figures.draw(result("logit-attribution", FOUR[:1]), "logit_attribution:nmae_heads")
    rings = [
        [s for s in mark(figure, chosen).layout.shapes if s.type == "circle"]
        for chosen in (Selection(layer=1), Selection(layer=1, head=2))
    ]
    assert [len(found) for found in rings] == [0, 2]
    strip = next(t for t in figure.data if isinstance(t, go.Scatter))
    row = [list(r[1:]) for r in strip.customdata].index([1, 2])
    assert (rings[1][0].xanchor, rings[1][0].yanchor) == (strip.x[row], strip.y[row])


def test_a_declaration_may_be_the_plain_mapping_of_axes() -> None:
    figure = go.Figure(
        go.Heatmap(z=[[1.0, 2.0]], meta={"select": {"x": "position", "y": "neuron"}})
    )
    (overlay,) = overlays(clickable(figure))
    assert click(overlay, 1) == Selection(position=1, neuron=0)
    assert list(coordinates(figure.data[0]).x) == [0, 1]
