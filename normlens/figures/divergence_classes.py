"""Panels of ``divergence`` by class of the predicted token."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.frame import (
    asymmetric_error,
    models_with_data,
    panel_titles,
    rows,
    stack_legend_once,
)
from normlens.figures.limits import SymmetricLog
from normlens.figures.tokens import escape
from normlens.results import Result

PARTITIONS = {
    "kind": "by kind of the predicted token",
    "context": "by what stands earlier in the sequence",
    "frequency": "by frequency of the token in this text",
}


def class_panels(result: Result, column: str, axis: SymmetricLog | None) -> go.Figure:
    """Bars of every class and model, one panel for each way to divide tokens.

    Args:
        result: of ``divergence``.
        column: the measure, with its interval in ``_low`` and ``_high``.
        axis: places the values; None for a linear axis.
    """
    frames = {m: rows(result, "classes", m) for m in models_with_data(result, "classes")}
    titles = tuple(PARTITIONS.values())
    classes = [_classes(frames, partition) for partition in PARTITIONS]
    figure = make_subplots(
        rows=len(titles),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.07,
        row_heights=[max(1, len(names)) for names in classes],
        subplot_titles=titles,
    )
    looks = theme.of_result(result)
    for row, (partition, names) in enumerate(zip(PARTITIONS, classes, strict=True), start=1):
        for model, frame in frames.items():
            part = frame[frame["partition"] == partition]
            bars = _bars(part, column, names, looks[model], axis)
            figure.add_trace(bars, row=row, col=1)
        figure.update_yaxes(
            tickmode="array",
            tickvals=list(range(len(names))),
            ticktext=[escape(name) for name in names],
            range=[len(names) - 0.5, -0.5],
            showgrid=False,
            zeroline=False,
            row=row,
            col=1,
        )
    stack_legend_once(figure)
    panel_titles(figure, titles)
    figure.update_layout(barmode="group", bargap=0.3)
    return figure


def _bars(
    frame: pd.DataFrame,
    column: str,
    names: list[str],
    look: theme.Identity,
    axis: SymmetricLog | None,
) -> go.Bar:
    drawn = frame[[column, f"{column}_low", f"{column}_high"]].astype(float)
    placed = drawn if axis is None else drawn.apply(axis.position)
    return go.Bar(
        orientation="h",
        x=placed[column].to_numpy(float),
        y=[names.index(name) for name in frame["token_class"]],
        name=look.label,
        legendgroup=look.model,
        marker={"color": look.colour},
        error_x=asymmetric_error(
            placed[column],
            placed[f"{column}_low"],
            placed[f"{column}_high"],
            theme.NOT_APPLICABLE,
        ),
        customdata=pd.concat([frame[["token_class", "n", "agreement"]], drawn], axis=1).to_numpy(
            object
        ),
        hovertemplate=(
            "<b>%{customdata[0]}</b> · %{fullData.name}<br>%{customdata[3]:.4g} "
            "[%{customdata[4]:.4g}, %{customdata[5]:.4g}] nats<br>same most probable token "
            "%{customdata[2]:.1%}<br>n = %{customdata[1]:,}<extra></extra>"
        ),
    )


def _classes(frames: dict[str, pd.DataFrame], partition: str) -> list[str]:
    """Classes that any model has data for, in the table's order."""
    found: dict[str, None] = {}
    for frame in frames.values():
        found |= dict.fromkeys(frame.loc[frame["partition"] == partition, "token_class"])
    return list(found)


def panels_height(result: Result) -> int:
    """Pixels that the panels need."""
    models = models_with_data(result, "classes")
    frames = {m: rows(result, "classes", m) for m in models}
    bars = sum(len(_classes(frames, partition)) for partition in PARTITIONS)
    return 130 + bars * (10 + 10 * max(1, len(models)))
