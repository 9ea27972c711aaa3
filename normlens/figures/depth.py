"""Lines over depth: one per model, a panel per quantity or token group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.declared import meaning, next_block
from normlens.figures.frame import (
    BY_LAYER,
    LOG_AXIS,
    asymmetric_error,
    dodge,
    models_with_data,
    panel_titles,
    rows,
    stack_legend_once,
)
from normlens.results import Result

MOST_TICKS = 24


@dataclass(frozen=True)
class Panel:
    """What one panel shows.

    Attributes:
        title: over the panel.
        column: what is on its y axis.
        where: column and value that select the rows.
        unit: on its y axis.
        log: whether the axis is logarithmic.
        level: where a dotted line stands, None for none.
    """

    title: str
    column: str
    where: tuple[tuple[str, str], ...]
    unit: str
    log: bool = False
    level: float | None = None


def panels(
    result: Result, table: str, x: str, shown: Sequence[Panel], *, x_title: str
) -> go.Figure:
    """A figure with one panel above the other; a column's interval is drawn where it has one.

    Args:
        result: of any number of models.
        table: where the numbers are.
        x: integer column on the x axis: block or point index.
        shown: the panels, from above.
        x_title: of the x axis.
    """
    titles = [panel.title for panel in shown]
    figure = make_subplots(
        rows=len(shown),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.13 if len(shown) < 3 else 0.09,
        subplot_titles=titles,
    )
    looks = theme.of_result(result)
    models = models_with_data(result, table)
    deepest = 0
    for row, panel in enumerate(shown, start=1):
        for index, model in enumerate(models):
            frame = _selected(rows(result, table, model), panel).sort_values(x)
            if len(frame):
                deepest = max(deepest, int(frame[x].max()))
                shift = dodge(index, len(models), 0.08)
                figure.add_trace(_line(frame, x, shift, panel, looks[model]), row=row, col=1)
        if panel.level is not None:
            figure.add_hline(
                y=panel.level, line={"width": 1, "dash": "dot"}, row=_any(row), col=_any(1)
            )
        axis: dict[str, Any] = LOG_AXIS if panel.log else {}
        figure.update_yaxes(title_text=panel.unit, row=row, col=1, **axis)
    stack_legend_once(figure)
    panel_titles(figure, titles)
    figure.update_xaxes(
        tickmode="linear",
        tick0=0,
        dtick=max(1, -(-(deepest + 1) // MOST_TICKS)),
        range=[-0.5, deepest + 0.5],
        zeroline=False,
    )
    figure.update_xaxes(title_text=x_title, row=len(shown), col=1)
    return figure


def depth_note(result: Result, table: str, x: str) -> str:
    """Says how models of different depth are aligned; empty where depths agree."""
    deepest = {int(rows(result, table, m)[x].max()) for m in models_with_data(result, table)}
    return BY_LAYER if len(deepest) > 1 else ""


def _selected(frame: pd.DataFrame, panel: Panel) -> pd.DataFrame:
    for column, value in panel.where:
        frame = frame[frame[column] == value]
    return frame


def _line(
    frame: pd.DataFrame, x: str, shift: float, panel: Panel, look: theme.Identity
) -> go.Scatter:
    value = frame[panel.column]
    low, high = f"{panel.column}_low", f"{panel.column}_high"
    bounded = low in frame and high in frame
    ends = frame[[low, high]] if bounded else pd.DataFrame({0: value, 1: value})
    details = pd.concat([frame[[x, "n"]], ends], axis=1).to_numpy(object)
    # A point is a place between blocks: what is selected there is the block after it.
    block = next_block(frame[x]) if x == "point" else list(frame[x])
    details = np.column_stack([details, np.array(block, dtype=object)])
    interval = " [%{customdata[2]:.4g}, %{customdata[3]:.4g}]" if bounded else ""
    return go.Scatter(
        x=frame[x].to_numpy(float) + shift,
        y=value.to_numpy(float),
        name=look.label,
        legendgroup=look.model,
        mode="lines+markers",
        line={"color": look.colour, "dash": look.dash, "width": 1.8},
        marker={"symbol": look.symbol, "size": 6, "color": look.colour},
        error_y=asymmetric_error(value, frame[low], frame[high], look.colour) if bounded else None,
        customdata=details,
        meta=meaning(x=x, columns=("", "", "", "", "layer"), model=look.model),
        hovertemplate=(
            f"<b>{x} %{{customdata[0]}}</b> · %{{fullData.name}}<br>%{{y:.4g}}{interval}"
            "<br>n = %{customdata[1]:,}<extra></extra>"
        ),
    )


def _any(value: Any) -> Any:
    # plotly declares row and col of add_hline as str alone.
    return value
