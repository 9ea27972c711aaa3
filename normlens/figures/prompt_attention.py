"""Figures of ``prompt-attention``: what heads do, one head's pattern, entropy by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.declared import meaning
from normlens.figures.frame import finish, models_with_data, panel_titles, rows
from normlens.figures.head_errors import integer_axis
from normlens.figures.limits import robust_limits
from normlens.figures.prompt_maps import (
    Matrix,
    are_related,
    cells,
    details_of,
    row_axis,
    scatter_into,
    share_colours,
    shown,
    token_axis,
    tokens_of,
)
from normlens.figures.prompt_pattern import pattern
from normlens.figures.tokens import escape
from normlens.results import Result

__all__ = ["entropy_by_position", "heads", "pattern"]

# By column, its name in lines that fit beside a small map.
SCORES = {
    "previous_token": ("previous", "token"),
    "duplicate_token": ("duplicate", "token"),
    "induction": ("induction",),
    "current_token": ("current", "token"),
    "first_token": ("first", "token"),
    "normalised": ("entropy", "/ ln n"),
}


def heads(result: Result) -> go.Figure:
    """Every score of every head, layer by head: models side by side and their difference."""
    models = models_with_data(result, "heads")
    looks = theme.of_result(result)
    grids = {model: _grids(result, model) for model in models}
    names = [_named(result, model) for model in models]
    columns = [looks[model].label for model in models]
    differ = are_related(result, models) and _same_shape(grids[m]["entropy"] for m in models)
    if differ:
        columns.append(f"{columns[1]} − {columns[0]}")
    depth = max((grid["entropy"].shape[0] for grid in grids.values()), default=1)
    plot = float(np.clip(9 * depth, 68, 200))
    height = len(SCORES) * (plot + 22) + 46
    width = max(1, len(columns))
    figure = make_subplots(
        rows=len(SCORES),
        cols=width,
        vertical_spacing=22 / height,
        horizontal_spacing=0.05 if width > 1 else 0,
        subplot_titles=[*columns, *[""] * (width * (len(SCORES) - 1))] if columns else None,
    )
    changes = [np.array([0.0])]
    for row, (score, lines) in enumerate(SCORES.items(), start=1):
        panels = [grids[model][score] for model in models]
        if differ:
            panels.append(panels[1] - panels[0])
            changes.append(panels[-1])
        for column, grid in enumerate(panels, start=1):
            signed = differ and column == width
            which = 0 if signed else column - 1
            meta = meaning(x="head", y="layer", model=models[which])
            for trace in _heads_traces(grid, names[which], " ".join(lines), meta, signed=signed):
                figure.add_trace(trace, row=row, col=column)
            x = integer_axis(grid.shape[1], "head" if row == len(SCORES) else "")
            y = integer_axis(grid.shape[0], "<br>".join(lines) if column == 1 else "")
            figure.update_xaxes(**x, row=row, col=column)
            figure.update_yaxes(**y, row=row, col=column)
    panel_titles(figure, columns)
    unknown = any(np.isnan(grid["induction"]).any() for grid in grids.values())
    limits = robust_limits(np.concatenate([change.ravel() for change in changes]), signed=True)
    figure.update_layout(**share_colours(limits.high, difference=differ), showlegend=False)
    return finish(
        figure,
        result,
        "heads",
        title="What each head attends to in this prompt",
        notes=(
            _count_note(result),
            "every map: layers upwards, heads to the right",
            "grey: the prompt repeats no token" if unknown else "",
            limits.note if differ else "",
        ),
        height=round(height),
    )


def entropy_by_position(result: Result) -> go.Figure:
    """Entropy over its ceiling by layer and query, mean over heads."""
    models = models_with_data(result, "queries")
    looks = theme.of_result(result)
    grids = {model: _by_position(result, model) for model in models}
    tokens = {model: tokens_of(result, "queries", model) for model in models}
    panels = [(looks[m].label, grids[m], m, False) for m in models]
    differ = (
        are_related(result, models)
        and _same_shape(grids.values())
        and tokens[models[0]] == tokens[models[1]]
    )
    if differ:
        first, second = models
        label = f"{looks[second].label} − {looks[first].label}"
        panels.append((label, grids[second] - grids[first], first, True))
    depth = max((grid.shape[0] for grid in grids.values()), default=1)
    plot = float(np.clip(20 * depth, 90, 330))
    count = max(1, len(panels))
    height = count * (plot + 96)
    figure = make_subplots(
        rows=count,
        cols=1,
        vertical_spacing=96 / height if count > 1 else 0,
        subplot_titles=[label for label, *_ in panels] or None,
    )
    for row, (_, grid, model, signed) in enumerate(panels, start=1):
        layers, positions = grid.shape
        words = tokens[model]
        details = details_of(grid.shape, shown(words)[:positions])
        number = "%{z:+.1%}" if signed else "%{z:.1%}"
        traces = cells(
            grid,
            x=range(positions),
            y=range(layers),
            coloraxis="coloraxis2" if signed else "coloraxis",
            hover=f"layer %{{y}}, query %{{x}}: “%{{customdata[0]}}”<br>{number} of the ceiling",
            details=details,
            meta=meaning(x="position", y="layer", model=model),
            absent="one visible key: no entropy",
        )
        for trace in traces:
            figure.add_trace(trace, row=row, col=1)
        figure.update_xaxes(**token_axis(words), tickangle=-60, row=row, col=1)
        labels = [str(layer) for layer in range(layers)]
        y = row_axis(labels, most=12) | {"range": [-0.5, layers - 0.5], "title_text": "layer"}
        figure.update_yaxes(**y, row=row, col=1)
    panel_titles(figure, [label for label, *_ in panels])
    limits = robust_limits(panels[-1][1] if differ else np.array([0.0]), signed=True)
    figure.update_layout(**share_colours(limits.high, difference=differ), showlegend=False)
    return finish(
        figure,
        result,
        "queries",
        title="Entropy of attention over its ceiling ln n, by query",
        notes=("mean over the heads of a layer", limits.note if differ else ""),
        height=round(height),
    )


def _grids(result: Result, model: str) -> dict[str, Matrix]:
    frame = rows(result, "heads", model)
    return {name: scatter_into(frame, ("layer", "head"), name) for name in (*SCORES, "entropy")}


def _named(result: Result, model: str) -> np.ndarray:
    frame = rows(result, "heads", model)
    shape = int(frame["layer"].max()) + 1, int(frame["head"].max()) + 1
    named = np.full(shape, "", dtype=object)
    where = frame["layer"].to_numpy(int), frame["head"].to_numpy(int)
    named[where] = [escape(str(name).replace("_", " ")) for name in frame["category"]]
    return named


def _same_shape(grids: Any) -> bool:
    return len({grid.shape for grid in grids}) == 1


def _heads_traces(
    grid: Matrix, named: np.ndarray, label: str, meta: dict[str, Any], *, signed: bool
) -> tuple[go.Heatmap, go.Heatmap]:
    number = "%{z:+.1%}" if signed else "%{z:.1%}"
    called = "in the first model" if signed else "named"
    return cells(
        grid,
        x=range(grid.shape[1]),
        y=range(grid.shape[0]),
        coloraxis="coloraxis2" if signed else "coloraxis",
        hover=f"L%{{y}}.H%{{x}}<br>{label} {number}<br>{called}: %{{customdata[0]}}",
        details=details_of((grid.shape[0], grid.shape[1]), named),
        meta=meta,
        absent=f"L%{{y}}.H%{{x}}: no {label} score",
    )


def _by_position(result: Result, model: str) -> Matrix:
    frame = rows(result, "queries", model)
    mean = frame.groupby(["layer", "position"])["normalised"].mean().reset_index()
    return scatter_into(mean, ("layer", "position"), "normalised")


def _count_note(result: Result) -> str:
    """How many queries the scores are means of."""
    frames = [rows(result, "heads", model) for model in models_with_data(result, "heads")]
    counts = {
        (int(f["n"].iloc[0]), int(f["n_duplicate"].iloc[0]), int(f["n_induction"].iloc[0]))
        for f in frames
    }
    if len(counts) != 1:
        return ""
    n, repeated, induced = counts.pop()
    few = f"{repeated:,} for duplicates, {induced:,} for induction"
    return f"n = {n:,} queries after the first; {few}"
