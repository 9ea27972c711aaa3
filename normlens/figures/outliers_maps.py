"""Maps of dimensions by layer, one panel per model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.declared import meaning, next_block
from normlens.figures.frame import finish, models_with_data, panel_titles, rows
from normlens.results import Result

MOST_ROWS = 12
ROW_HEIGHT = 22


@dataclass(frozen=True)
class Cells:
    """What a map shows: values by dimension (rows) and depth (columns).

    Attributes:
        values: indexed by dimension.
        counts: what the columns count, ``layer`` or ``point``.
        words: instead of a map.
    """

    values: pd.DataFrame
    counts: str = "layer"
    words: str = ""


def dimension_map(result: Result, model: str) -> Cells:
    """Mean-square share by dimension and depth, tokens but the first."""
    frame = rows(result, "profile", model)
    frame = frame[(frame["group"] == "rest") & frame["dimension"].notna()]
    return _pivot(frame, "depth", "mean_square_share", "point")


def feature_map(result: Result, model: str) -> Cells:
    """Share of tokens at the relative threshold by dimension and layer."""
    frame = rows(result, "feature_layers", model)
    frame = frame[(frame["criterion"] == "relative") & frame["dimension"].notna()]
    if not len(frame):
        words = "no dimension reaches the threshold in any token"
        return Cells(pd.DataFrame(), words=words)
    return _pivot(frame, "layer", "token_share", "layer")


def panels(
    result: Result,
    table: str,
    cells: Callable[[Result, str], Cells],
    *,
    title: str,
    colour: str,
    notes: Sequence[str],
    axis: str,
) -> go.Figure:
    """One map per model, all on one colour scale."""
    models = models_with_data(result, table)
    maps = {model: cells(result, model) for model in models}
    looks = theme.of_result(result)
    heights = [max(2, len(maps[m].values)) for m in models] or [2]
    total = sum(heights) * ROW_HEIGHT + 62 * len(heights)
    figure = make_subplots(
        rows=max(1, len(models)),
        cols=1,
        row_heights=heights,
        vertical_spacing=min(0.9 / max(1, len(models)), 62 / total) if len(models) > 1 else 0,
        subplot_titles=[looks[m].label for m in models] or None,
    )
    for panel, model in enumerate(models, start=1):
        _draw(figure, maps[model], model, panel)
    if models:
        panel_titles(figure, [looks[m].label for m in models])
    for panel, model in enumerate(models, start=1):
        if maps[model].words:
            _say(figure, maps[model].words, panel)
    figure.update_xaxes(title_text=axis, row=len(models) or 1, col=1)
    figure.update_layout(
        coloraxis={
            "colorscale": theme.SEQUENTIAL,
            "cmin": 0,
            "colorbar": {"title": {"text": colour, "side": "right"}, "tickformat": ".0%"},
        }
    )
    return finish(figure, result, table, title=title, notes=notes, height=total + 40)


def _pivot(frame: pd.DataFrame, column: str, value: str, counts: str) -> Cells:
    # Both inputs of a layer may be there: the larger one stands for the layer.
    table = frame.pivot_table(index="dimension", columns=column, values=value, aggfunc="max")
    order = [d for d in dict.fromkeys(frame["dimension"]) if d in table.index]
    return Cells(table.reindex(order[:MOST_ROWS]), counts)


def _draw(figure: go.Figure, cells: Cells, model: str, panel: int) -> None:
    values = cells.values.to_numpy(float)
    labels = [str(d) for d in cells.values.index]
    layers = [int(c) for c in cells.values.columns]
    y = list(range(len(labels)))
    shared = {"x": layers, "y": y, "xgap": 1, "ygap": 1}
    blocks = next_block(layers) if cells.counts == "point" else layers
    details = np.array([[[name, block] for block in blocks] for name in labels], dtype=object)
    figure.add_trace(
        go.Heatmap(
            z=np.where(np.isfinite(values), np.nan, 0.0),
            showscale=False,
            colorscale=[[0, theme.NOT_APPLICABLE], [1, theme.NOT_APPLICABLE]],
            hovertemplate="no value<extra></extra>",
            **shared,
        ),
        row=panel,
        col=1,
    )
    figure.add_trace(
        go.Heatmap(
            z=values,
            coloraxis="coloraxis",
            customdata=details,
            meta=meaning(x=cells.counts, columns=("dimension", "layer"), model=model),
            hoverongaps=False,
            hovertemplate="dimension %{customdata[0]}, %{x}<br>%{z:.2%}<extra></extra>",
            **shared,
        ),
        row=panel,
        col=1,
    )
    figure.update_yaxes(
        tickmode="array",
        tickvals=y,
        ticktext=labels,
        autorange="reversed",
        showgrid=False,
        zeroline=False,
        title_text="dimension",
        row=panel,
        col=1,
    )
    figure.update_xaxes(showgrid=False, zeroline=False, row=panel, col=1)


def _say(figure: go.Figure, words: str, panel: int) -> None:
    figure.add_annotation(
        text=words,
        x=0.5,
        y=0.5,
        xref="x domain" if panel == 1 else f"x{panel} domain",
        yref="y domain" if panel == 1 else f"y{panel} domain",
        showarrow=False,
    )
