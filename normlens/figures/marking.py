"""Outlines around what is selected, seen on light and dark pages and on any colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from normlens.comparison.selection import Selection
from normlens.figures.declared import (
    Declared,
    coordinates,
    declared,
    is_map,
    selected_fields,
)

_NAME = "selected"
# One of the two is seen against any background.
_STROKES = (("#ffffff", 4.0), ("#111111", 1.6))
_RING = 9


def mark(figure: go.Figure, selection: Selection) -> go.Figure:
    """A copy in which the selected cell, row, line or point is outlined.

    A trace is marked where it declares at least one chosen field; cells or points are those
    that agree in every chosen field which the trace declares, on lines over depth in the depth.
    Marks made before are replaced.
    """
    copy = go.Figure(figure)
    kept = [shape for shape in cast(Any, copy.layout).shapes if shape.name != _NAME]
    chosen = selection.chosen
    shapes: list[dict[str, Any]] = []
    lines: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    panels: set[tuple[str, str]] = set()
    for trace in cast(Sequence[Any], copy.data):
        known = declared(trace)
        if known is None or known.overlay:
            continue
        found = _matching(trace, known, chosen)
        if not found.any():
            continue
        where = coordinates(trace)
        axes = trace.xaxis or "x", trace.yaxis or "y"
        if known.mark == "panel":
            panels.add(axes)
            continue
        if is_map(trace):
            shapes += _outline(where.x, where.y, found, axes)
        elif known.mark == "point":
            if not _fields(trace) <= set(chosen):
                continue
            for x, y in zip(where.x[found], where.y[found], strict=True):
                shapes += _ring(x, y, axes)
        else:
            values = where.y if _across(trace, known) == "y" else where.x
            step = _step(values)
            key = (_across(trace, known), *axes)
            lines.setdefault(key, []).extend((float(v), step) for v in values[found])
    for axes in sorted(panels):
        shapes += _frame(axes)
    for (across, *axes), places in lines.items():
        for place in _apart(places):
            shapes += _line(place, across, axes)
    copy.layout.shapes = (*kept, *shapes)
    return copy


def _matching(trace: Any, known: Declared, chosen: dict[str, int | str]) -> NDArray[np.bool_]:
    spoken = _spoken(trace, known) & set(chosen)
    if "site" in spoken:
        # A site lies in one block already.
        spoken.discard("layer")
    return np.array(
        [
            bool(spoken) and all(point.get(name) == chosen[name] for name in spoken)
            for point in selected_fields(trace)
        ],
        dtype=bool,
    )


def _spoken(trace: Any, known: Declared) -> set[str]:
    """The fields that say where a mark stands: of a line over depth, the depth alone."""
    depth = {"layer": {"layer"}, "point": {"layer"}, "site": {"site", "layer"}}
    counts = known.axes.get("x", "")
    if counts in depth and not is_map(trace) and not known.mark:
        return depth[counts]
    return _fields(trace)


def _fields(trace: Any) -> set[str]:
    return {name for point in selected_fields(trace) for name in point}


def _across(trace: Any, known: Declared) -> str:
    """The axis that a line stands on."""
    return known.mark or ("y" if getattr(trace, "orientation", None) == "h" else "x")


def _step(values: NDArray[Any]) -> float:
    places = np.unique(values[np.isfinite(values.astype(float))].astype(float))
    return float(np.diff(places).min()) if len(places) > 1 else 1.0


def _apart(places: Iterable[tuple[float, float]]) -> list[float]:
    """One place for marks that models share but for the small shift that sets them apart."""
    groups: list[list[float]] = []
    for value, step in sorted(places):
        if groups and value - groups[-1][0] < 0.45 * step:
            groups[-1].append(value)
        else:
            groups.append([value])
    return [float(np.mean(group)) for group in groups]


def _outline(
    x: NDArray[Any], y: NDArray[Any], found: NDArray[np.bool_], axes: tuple[str, str]
) -> list[dict[str, Any]]:
    ends = {}
    for name, values in (("x", x.astype(float)), ("y", y.astype(float))):
        half = _step(values) / 2
        ends[name] = float(values[found].min() - half), float(values[found].max() + half)
    return [
        _shape("rect", colour, width, axes)
        | {"x0": ends["x"][0], "x1": ends["x"][1], "y0": ends["y"][0], "y1": ends["y"][1]}
        for colour, width in _STROKES
    ]


def _line(place: float, across: str, axes: Sequence[str]) -> list[dict[str, Any]]:
    other = "y" if across == "x" else "x"
    x_axis, y_axis = axes
    refs = (x_axis, f"{y_axis} domain") if across == "x" else (f"{x_axis} domain", y_axis)
    return [
        _shape("line", colour, width, refs)
        | {f"{across}0": place, f"{across}1": place, f"{other}0": 0, f"{other}1": 1}
        | {"layer": "below"}
        for colour, width in _STROKES
    ]


def _frame(axes: tuple[str, str]) -> list[dict[str, Any]]:
    refs = tuple(f"{axis} domain" for axis in axes)
    return [
        _shape("rect", colour, width, refs) | {"x0": 0, "x1": 1, "y0": 0, "y1": 1}
        for colour, width in _STROKES
    ]


def _ring(x: Any, y: Any, axes: tuple[str, str]) -> list[dict[str, Any]]:
    return [
        _shape("circle", colour, width, axes)
        | {"xsizemode": "pixel", "ysizemode": "pixel"}
        | {"xanchor": float(x), "yanchor": float(y)}
        | {"x0": -_RING, "x1": _RING, "y0": -_RING, "y1": _RING}
        for colour, width in _STROKES
    ]


def _shape(kind: str, colour: str, width: float, axes: Sequence[str]) -> dict[str, Any]:
    return {
        "type": kind,
        "name": _NAME,
        "xref": axes[0],
        "yref": axes[1],
        "line": {"color": colour, "width": width, "dash": "solid"},
        "fillcolor": "rgba(0,0,0,0)",
    }
