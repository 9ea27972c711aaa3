"""Maps of one number per head, layer by head, one panel per model and their difference."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from normlens.comparison.lineage import relations
from normlens.figures import theme
from normlens.figures.declared import meaning
from normlens.figures.frame import finish, grid_shape, models_with_data, panel_titles, rows
from normlens.figures.head_errors import integer_axis, side
from normlens.figures.limits import robust_limits
from normlens.results import Result

# Tick labels, the axis title and the next panel's title, px.
_BETWEEN = 62
_BELOW = 46
# Two digits fit into a cell of a figure 390 px wide with two panels side by side.
_MOST_HEADS_WITH_TEXT = 8

Matrix = NDArray[np.float64]


def head_maps(
    result: Result,
    table: str,
    column: str,
    *,
    what: str,
    title: str,
    notes: Iterable[str],
    beside_name: dict[str, str],
) -> go.Figure:
    """One map per model on one colour axis from 0 to 1, and B - A where two are related.

    Args:
        result: one or several models.
        table: with ``layer``, ``head`` and the column; rows of the group ``rest`` where it has
            groups.
        column: a share from 0 to 1.
        what: its name, for the pointer.
        title: of the figure.
        notes: lines under the title.
        beside_name: by model, what stands after its name over the panel.
    """
    models = models_with_data(result, table)
    looks = theme.of_result(result)
    grids = [_grid(_of_rest(rows(result, table, model)), column) for model in models]
    titles = [f"{looks[model].label}{beside_name.get(model, '')}" for model in models]
    difference = _difference(result, models, grids)
    panels = grids if difference is None else [*grids, difference]
    if difference is not None:
        titles.append(f"{looks[models[1]].label} − {looks[models[0]].label}")
    shape_rows, columns = grid_shape(max(1, len(panels)))
    layers = max((len(grid) for grid in panels), default=1)
    cell = float(np.clip(320 / layers, 11, 26))
    height = shape_rows * layers * cell + (shape_rows - 1) * _BETWEEN + _BELOW
    figure = make_subplots(
        rows=shape_rows,
        cols=columns,
        vertical_spacing=_BETWEEN / height if shape_rows > 1 else 0.0,
        horizontal_spacing=0.09,
        subplot_titles=[*titles, *[""] * (shape_rows * columns - len(panels))],
    )
    for panel, grid in enumerate(panels):
        place: dict[str, Any] = {"row": panel // columns + 1, "col": panel % columns + 1}
        signed = difference is not None and panel == len(panels) - 1
        model = models[0 if signed else panel]
        for trace in _traces(grid, what, model, signed=signed):
            figure.add_trace(trace, **place)
        in_first, in_last = place["col"] == 1, panel + columns >= len(panels)
        figure.update_yaxes(**integer_axis(len(grid), "layer" if in_first else ""), **place)
        figure.update_xaxes(**integer_axis(grid.shape[1], "head" if in_last else ""), **place)
    for spare in range(len(panels), shape_rows * columns):
        place = {"row": spare // columns + 1, "col": spare % columns + 1}
        figure.update_xaxes(visible=False, **place)
        figure.update_yaxes(visible=False, **place)
    panel_titles(figure, [text for text in titles if text])
    limits = robust_limits(np.array([0.0]) if difference is None else difference, signed=True)
    upper = 1.0 if difference is None else 0.5
    figure.update_layout(
        showlegend=False,
        coloraxis={
            "colorscale": theme.SEQUENTIAL,
            "cmin": 0.0,
            "cmax": 1.0,
            "colorbar": {"tickformat": ".0%", "y": 1, "yanchor": "top", "len": upper},
        },
        coloraxis2={
            "colorscale": theme.DIVERGING,
            "cmin": limits.low,
            "cmax": limits.high,
            "showscale": difference is not None,
            "colorbar": {
                "tickformat": "+.2~%", "y": 0, "yanchor": "bottom", "len": 0.44, "thickness": 12,
            },
        },
    )  # fmt: skip
    note = limits.note if difference is not None else ""
    return finish(figure, result, table, title=title, notes=(*notes, note), height=round(height))


def _of_rest(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["group"] == "rest"] if "group" in frame else frame


def _grid(frame: pd.DataFrame, column: str) -> Matrix:
    values = np.full((side(frame["layer"]), side(frame["head"])), np.nan)
    where = frame["layer"].to_numpy(int), frame["head"].to_numpy(int)
    values[where] = frame[column].to_numpy(float)
    return values


def _difference(result: Result, models: list[str], grids: list[Matrix]) -> Matrix | None:
    """The second model minus the first; None unless the same head means the same in both."""
    if len(models) != 2 or grids[0].shape != grids[1].shape:
        return None
    related = any(
        relation.related and {relation.model, relation.other} == set(models)
        for relation in relations(result.models, result.provenance)
    )
    return grids[1] - grids[0] if related else None


def _traces(grid: Matrix, what: str, model: str, *, signed: bool) -> tuple[go.Heatmap, go.Heatmap]:
    """Grey cells for what has no value, and the values above them."""
    grey = go.Heatmap(
        z=np.where(np.isfinite(grid), np.nan, 0.0),
        showscale=False,
        colorscale=[[0, theme.NOT_APPLICABLE], [1, theme.NOT_APPLICABLE]],
        hovertemplate="L%{y}.H%{x}: no value<extra></extra>",
        xgap=1,
        ygap=1,
    )
    shape = "+.0f" if signed else ".0f"
    with_text = grid.shape[1] <= _MOST_HEADS_WITH_TEXT
    text = [[format(100 * v, shape) if np.isfinite(v) else "" for v in line] for line in grid]
    number = "%{z:+.2%}" if signed else "%{z:.1%}"
    coloured = go.Heatmap(
        z=grid,
        text=text if with_text else None,
        texttemplate="%{text}" if with_text else None,
        coloraxis="coloraxis2" if signed else "coloraxis",
        xgap=1,
        ygap=1,
        hovertemplate=f"L%{{y}}.H%{{x}}<br>{what} {number}<extra></extra>",
        meta=meaning(x="head", y="layer", model=model),
        hoverongaps=False,
    )
    return grey, coloured
