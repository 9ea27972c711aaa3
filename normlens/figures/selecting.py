"""From a click to a selection and back: what a chart in the browser needs beside its traces.

1. :func:`clickable` gives every point of a declared trace the selection it stands for, and
   lays points over maps, whose cells take no clicks in a browser.
2. :func:`picked` reads the selection back from the clicked point.
3. :func:`mark` outlines what is selected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go

from normlens.comparison.selection import Selection
from normlens.figures.declared import (
    FIELDS,
    as_field,
    coordinates,
    custom_rows,
    declared,
    is_map,
    meaning,
    rewrite_hover,
    selected_fields,
    with_column,
)
from normlens.figures.map_hover import Z, flat_text, hover_of_cells
from normlens.figures.marking import mark

__all__ = ["MOST_CELLS", "Selection", "clickable", "mark", "picked"]

MOST_CELLS = 20_000
"""Cells of the largest map that takes clicks: a browser draws every one as an element."""

_PREFIX = "select:"
# Plotly finds the nearest centre by distance from a marker's edge: larger markers would
# overlap where cells are narrow, and a click would go to a neighbour.
_MARKER = 6


def clickable(figure: go.Figure) -> go.Figure:
    """A copy whose declared points and cells say what they stand for when clicked.

    Over every declared map lies a nearly transparent scatter with the map's own hover text,
    one point per cell, cells without a value included; larger maps than :data:`MOST_CELLS`
    stay as they are. Axes get the range they had without it. What is drawn does not change.
    """
    copy = go.Figure(figure)
    traces = cast(Sequence[Any], copy.data)
    known = [declared(trace) for trace in traces]
    if any(one is not None and one.overlay for one in known):
        return copy
    maps: list[Any] = []
    for trace, one in zip(traces, known, strict=True):
        if one is None:
            continue
        if is_map(trace):
            if np.size(trace.z) <= MOST_CELLS:
                maps.append(trace)
        else:
            words = _words(selected_fields(trace))
            if any(words):
                with_column(trace, words)
    for trace in traces:
        _keep_bright(trace)
    overlays = [_overlay(trace, traces) for trace in maps]
    _keep_ranges(copy, maps)
    for trace in traces:
        if is_map(trace) and _axes(trace) in {_axes(one) for one in maps}:
            trace.update(hoverinfo="skip", hovertemplate=None)
    copy.add_traces(overlays)
    if overlays:
        copy.update_layout(hoverdistance=-1)
    return copy


def picked(point: Mapping[str, Any]) -> Selection:
    """The selection that a clicked point stands for; empty where it stands for none.

    Args:
        point: of a chart's selection event, with its ``customdata``.
    """
    row = point.get("customdata")
    # Typed arrays of the browser arrive as mappings of their indices.
    values = list(row.values()) if isinstance(row, Mapping) else row
    for value in reversed(values if isinstance(values, list) else [values]):
        if isinstance(value, str) and value.startswith(_PREFIX):
            return _read(value.removeprefix(_PREFIX))
    return Selection()


def _read(text: str) -> Selection:
    try:
        found = json.loads(text)
    except ValueError:
        return Selection()
    if not isinstance(found, dict):
        return Selection()
    chosen: dict[str, Any] = {name: as_field(name, found.get(name)) for name in FIELDS}
    return Selection(**chosen)


def _words(points: Sequence[Mapping[str, int | str]]) -> list[str]:
    return [_PREFIX + json.dumps(point, separators=(",", ":")) if point else "" for point in points]


def _axes(trace: Any) -> tuple[str, str]:
    return trace.xaxis or "x", trace.yaxis or "y"


def _overlay(trace: Any, traces: Sequence[Any]) -> go.Scatter:
    where = coordinates(trace)
    known = declared(trace)
    assert known is not None
    values = np.asarray(trace.z, dtype=np.float32).ravel()
    below = [one for one in traces if is_map(one) and _axes(one) == _axes(trace)]
    rows = custom_rows(trace, len(values))
    points = go.Scatter(
        x=where.x,
        y=where.y,
        xaxis=trace.xaxis,
        yaxis=trace.yaxis,
        mode="markers",
        name=trace.name,
        showlegend=False,
        text=flat_text(trace),
        marker={
            "symbol": "square",
            "size": _MARKER,
            "opacity": 0.01,
            # Where the hover text finds the value of the cell.
            "color": values,
            "colorscale": [[0, "rgb(127,127,127)"], [1, "rgb(127,127,127)"]],
            "showscale": False,
            "line": {"width": 0},
        },
        customdata=np.asarray(rows, dtype=object) if rows and rows[0] else None,
        hovertemplate=hover_of_cells(trace, below),
        meta=meaning(
            x=known.axes.get("x", ""),
            y=known.axes.get("y", ""),
            columns=known.columns,
            model=known.model,
            overlay=True,
        ),
    )
    rewrite_hover(points, Z, "%{marker.color")
    with_column(points, _words(selected_fields(trace)))
    return points


def _keep_bright(trace: Any) -> None:
    """A selected point must not fade the others: what is selected is marked instead."""
    if trace.type in ("scatter", "bar"):
        opacity = trace.marker.opacity
        trace.unselected = {"marker": {"opacity": 1.0 if opacity is None else opacity}}


def _keep_ranges(figure: go.Figure, maps: Sequence[Any]) -> None:
    """Fix the ranges of maps' axes: markers would ask for a margin."""
    ends: dict[str, list[float]] = {}
    for trace in maps:
        where = coordinates(trace)
        for axis, values in zip(_axes(trace), (where.x, where.y), strict=True):
            places = np.unique(values.astype(float))
            half = float(np.diff(places).min()) / 2 if len(places) > 1 else 0.5
            ends.setdefault(axis, []).extend([places[0] - half, places[-1] + half])
    for name, found in ends.items():
        axis: Any = figure.layout[f"{name[0]}axis{name[1:]}"]
        if axis.range is None:
            low, high = min(found), max(found)
            reverse = axis.autorange == "reversed"
            axis.update(range=[high, low] if reverse else [low, high], autorange=False)
