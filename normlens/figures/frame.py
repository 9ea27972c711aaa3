"""What every figure shares: rows that hold data, the header, and words for what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from normlens.figures.theme import template
from normlens.figures.tokens import wrap
from normlens.results import Result

# What fits in a figure 390 px wide, at 15 px for the title and 12 px for the rest.
TITLE_WIDTH, NOTE_WIDTH = 42, 56
BY_LAYER = "models differ in depth; aligned by absolute layer"
"""Note on figures whose models differ in depth."""
LOG_AXIS: dict[str, Any] = {"type": "log", "dtick": "D2", "tickformat": "~g"}
"""A logarithmic axis whose labels 2 and 5 are written out: 0.02, not 2."""
# Plotly sets the lines of one text 1.3 times its base size apart, whatever their own size.
HEADER_SIZE = 13
LINE = 1.3 * HEADER_SIZE
_HEADING = '<span style="font-size:15px;font-weight:600">{}</span>'
_NOTE = '<span style="font-size:12px;opacity:0.78">{}</span>'


def rows(result: Result, table: str, model: str) -> pd.DataFrame:
    """The rows of a model whose status is ``ok``, in the table's order."""
    frame = result.tables[table]
    return frame[(frame["model"] == model) & (frame["status"] == "ok")]


def models_with_data(result: Result, table: str) -> list[str]:
    """Models with at least one ``ok`` row, in display order."""
    return [model for model in result.models if len(rows(result, table, model))]


def tokens_note(result: Result, table: str, **where: str) -> str:
    """``n = 7,938 tokens``, or the range over models; empty without data.

    ``where`` selects rows, e.g. ``group="rest"``; each model counts with its largest ``n``.
    """
    counts = []
    for model in result.models:
        frame = rows(result, table, model)
        for column, value in where.items():
            frame = frame[frame[column] == value]
        if len(frame):
            counts.append(int(frame["n"].max()))
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    per_model = " per model" if len(counts) > 1 else ""
    span = f"{low:,}" if low == high else f"{low:,}–{high:,}"
    return f"n = {span} tokens{per_model}"


def missing_notes(result: Result, table: str) -> list[str]:
    """In words, which models or rows the figure cannot show and why."""
    notes = [f"Not applicable to {m}: {why}" for m, why in result.not_applicable.items()]
    frame = result.tables[table]
    for model in result.models:
        if model in result.not_applicable:
            continue
        statuses = frame.loc[frame["model"] == model, "status"]
        if not len(statuses):
            notes.append(f"{model}: no data")
        for status, count in statuses[statuses != "ok"].value_counts(sort=False).items():
            rows_are = "row is" if count == 1 else "rows are"
            notes.append(f"{model}: {count} {rows_are} {str(status).replace('_', ' ')}")
    return notes


def finish(
    figure: go.Figure,
    result: Result,
    table: str,
    *,
    title: str,
    notes: Iterable[str] = (),
    height: int,
) -> go.Figure:
    """Give a figure its template, header and height; the header's own height is added.

    Args:
        figure: with its traces.
        result: what it shows.
        table: the table it was drawn from.
        title: with the unit.
        notes: lines under the title; n first.
        height: of the plot without its header, px.
    """
    if not models_with_data(result, table):
        _say_there_is_nothing(figure)
        height = 120
    lines = (*notes, *missing_notes(result, table))
    return heading(figure, title=title, notes=lines, height=height)


def heading(figure: go.Figure, *, title: str, notes: Iterable[str] = (), height: int) -> go.Figure:
    """Give a figure its template, header and height, whatever it was drawn from.

    Args:
        figure: with its traces.
        title: with the unit.
        notes: lines under the title; empty ones are left out.
        height: of the plot without its header, px.
    """
    small = [part for line in notes if line for part in wrap(line, NOTE_WIDTH)]
    header = [*map(_HEADING.format, wrap(title, TITLE_WIDTH)), *map(_NOTE.format, small)]
    top = round(40 + LINE * len(header))
    figure.update_layout(
        template=template(),
        title={"text": "<br>".join(header), "font": {"size": HEADER_SIZE}},
        margin={"t": top},
        height=height + top,
    )
    return figure


def stack_legend_once(figure: go.Figure) -> None:
    """Keep the first legend entry of every group."""
    seen: set[str] = set()
    traces: Any = figure.data
    for trace in traces:
        group = trace.legendgroup
        if group and trace.showlegend is not False:
            trace.showlegend = group not in seen
            seen.add(group)


def dodge(index: int, count: int, width: float = 0.6) -> float:
    """Offset of the ``index``-th of ``count`` marks that share a position."""
    return 0.0 if count < 2 else (index / (count - 1) - 0.5) * width


def asymmetric_error(
    value: pd.Series, low: pd.Series, high: pd.Series, colour: str
) -> dict[str, Any]:
    """Plotly error bars from interval ends."""
    return {
        "type": "data",
        "symmetric": False,
        "array": (high - value).clip(lower=0).to_numpy(float),
        "arrayminus": (value - low).clip(lower=0).to_numpy(float),
        "color": colour,
        "thickness": 1.3,
        "width": 3,
    }


def grid_shape(panels: int) -> tuple[int, int]:
    """Rows and columns for panels; two columns stay readable at 390 px."""
    columns = 1 if panels == 1 else 2
    return max(1, -(-panels // columns)), columns


def panel_titles(figure: go.Figure, titles: Sequence[str]) -> None:
    """Left-aligned titles over the subplots that ``make_subplots`` titled in the same order."""
    layout: Any = figure.layout
    for annotation, title in zip(layout.annotations, titles, strict=False):
        annotation.update(text=title, font={"size": 12})


def _say_there_is_nothing(figure: go.Figure) -> None:
    figure.data = []
    figure.layout.annotations = ()
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.update_layout(coloraxis=None)
    figure.add_annotation(
        text="None of these models has data here; the reasons stand above.",
        x=0.5,
        y=0.5,
        xref="paper",
        yref="paper",
        showarrow=False,
    )
