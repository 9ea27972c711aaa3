"""Depth as a share of a model's own, so that models of different depth align.

Block l of L lies at (l + 1/2) / L, the point before it at l / L; the norms of a block are
spread evenly over it in order of execution, those before all blocks lie at 0 and those after
them at 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from normlens.figures.declared import (
    as_field,
    coordinates,
    custom_rows,
    declared,
    is_map,
    rewrite_hover,
    with_column,
)
from normlens.figures.frame import BY_LAYER
from normlens.figures.tokens import escape

Axis = Literal["x", "y"]
TITLE = "share of depth"
BY_SHARE = "models differ in depth; aligned by share of depth"
_DEPTHS = ("layer", "point", "site")
_MARGIN = 0.02


@dataclass(frozen=True)
class Depths:
    """Where the places of an axis lie in one model.

    Attributes:
        counts: ``layer``, ``point`` or ``site``.
        layers: blocks of the model.
        places: of an axis of sites: position on it -> share of depth.
    """

    counts: str
    layers: int
    places: Mapping[int, float]

    def share(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Shares of depth; NaN where the model has no such place."""
        places = values.astype(float)
        if self.counts == "layer":
            return (places + 0.5) / self.layers
        if self.counts == "point":
            return places / self.layers
        whole = np.array([round(v) if math.isfinite(v) else -1 for v in places], dtype=int)
        found = np.array([self.places.get(int(v), math.nan) for v in whole])
        # The small shift that sets models apart at one place.
        return found + np.where(whole >= 0, places - whole, 0) / max(1, len(self.places))

    def only_deeper_missing(self, values: NDArray[Any]) -> bool:
        """Whether all sites that the model has not lie beyond its last block.

        Those are sites of deeper models, and a line may go on to the final norm.
        """
        places = {round(float(v)) for v in values if math.isfinite(float(v))}
        missing = places - set(self.places)
        last = max((place for place, share in self.places.items() if share < 1), default=0)
        return bool(missing) and all(place > last for place in missing)


def relative_depth(figure: go.Figure, layers: Mapping[str, int]) -> go.Figure | None:
    """A copy whose depth axes run from 0 to 100 % of each model's own depth.

    Args:
        figure: with declared traces.
        layers: number of blocks of every model.

    Returns:
        None where the figure has no depth axis, or one with traces of a model that is not in
        ``layers``, has no blocks, or is not declared while models differ.
    """
    copy = go.Figure(figure)
    traces = cast(Sequence[Any], copy.data)
    layers = {escape(model): count for model, count in layers.items()}
    depths = _depths(traces, layers)
    if not depths or any(one.layers < 1 for one in depths.values()):
        return None
    changed: dict[tuple[Axis, str], str] = {}
    for trace in traces:
        for axis in ("x", "y"):
            name = _axis_name(trace, axis)
            on_axis = [one for key, one in depths.items() if key[:2] == (axis, name)]
            if not on_axis:
                continue
            of_model = depths.get((axis, name, _model(trace)))
            if of_model is None and (_model(trace) or any(one != on_axis[0] for one in on_axis)):
                return None
            _move(trace, axis, of_model or on_axis[0])
            changed[axis, name] = on_axis[0].counts
    for (axis, name), counts in changed.items():
        _retitle(copy, axis, name, counts)
    title: Any = copy.layout.title
    if title.text:
        title.text = title.text.replace(BY_LAYER, BY_SHARE)
    return copy


def _model(trace: Any) -> str:
    return str(trace.meta.get("model", "")) if isinstance(trace.meta, dict) else ""


def _axis_name(trace: Any, axis: Axis) -> str:
    return str(trace[f"{axis}axis"] or axis)


def _depths(
    traces: Sequence[Any], layers: Mapping[str, int]
) -> dict[tuple[Axis, str, str], Depths]:
    """By axis, its name and model, what it counts there."""
    counted: dict[tuple[Axis, str, str], str] = {}
    sites: dict[str, dict[int, Any]] = {}
    for trace in traces:
        known = declared(trace)
        for axis in ("x", "y"):
            counts = known.axes.get(axis, "") if known else ""
            if known is None or counts not in _DEPTHS:
                continue
            counted[axis, _axis_name(trace, axis), known.model] = counts
            if counts == "site" and not known.overlay:
                found = _sites(trace, axis, known.columns)
                sites.setdefault(known.model, {}).update(found)
    return {
        key: Depths(counts, layers.get(key[2], 0), _places(sites.get(key[2], {}), layers, key[2]))
        for key, counts in counted.items()
    }


def _sites(trace: Any, axis: Axis, columns: Sequence[str]) -> dict[int, Any]:
    """Position -> layer of the sites that a trace has points for; layer None outside blocks."""
    where = coordinates(trace)
    values = where.x if axis == "x" else where.y
    found = {}
    for value, row in zip(values, custom_rows(trace, len(values)), strict=True):
        named = dict(zip(columns, row, strict=False))
        if isinstance(named.get("site"), str) and math.isfinite(float(value)):
            found[round(float(value))] = as_field("layer", named.get("layer"))
    return found


def _places(sites: Mapping[int, Any], layers: Mapping[str, int], model: str) -> dict[int, float]:
    count = layers.get(model, 0)
    inside = [place for place, layer in sites.items() if layer is not None]
    first = min(inside, default=0)
    found: dict[int, float] = {}
    for place, layer in sites.items():
        if layer is None:
            found[place] = 0.0 if place < first else 1.0
            continue
        same = sorted(p for p, other in sites.items() if other == layer)
        found[place] = (layer + (same.index(place) + 0.5) / len(same)) / max(1, count)
    return found


def _move(trace: Any, axis: Axis, depths: Depths) -> None:
    where = coordinates(trace)
    before = where.x if axis == "x" else where.y
    known = declared(trace)
    if known is not None and known.axes.get(axis) in _DEPTHS:
        _keep_places(trace, axis, before)
    values = before if not is_map(trace) else _of_map(trace, axis)
    trace[axis] = depths.share(values)
    if isinstance(trace, go.Scatter) and depths.only_deeper_missing(values):
        trace.connectgaps = True


def _of_map(trace: Any, axis: Axis) -> NDArray[Any]:
    given = trace.x if axis == "x" else trace.y
    return np.arange(np.shape(trace.z)[axis == "x"]) if given is None else np.asarray(given)


def _keep_places(trace: Any, axis: Axis, before: NDArray[Any]) -> None:
    """What the axis said moves to customdata, for hover text and selection."""
    known = declared(trace)
    assert known is not None
    name = known.axes[axis]
    spoken = "layer" if name == "layer" and "layer" not in known.columns else ""
    whole = [round(float(v)) if math.isfinite(float(v)) else None for v in before]
    column = with_column(trace, whole, spoken)
    rewrite_hover(trace, re.compile(rf"%\{{{axis}(?=[:}}])"), f"%{{customdata[{column}]")
    axes = {key: value for key, value in known.axes.items() if key != axis}
    trace.meta = {**trace.meta, "select": axes}


def _retitle(figure: go.Figure, axis: Axis, name: str, counts: str) -> None:
    found: Any = figure.layout[f"{axis}axis{name[1:]}"]
    downwards = found.autorange == "reversed" or (
        found.range is not None and found.range[0] > found.range[-1]
    )
    edges = [
        edge
        for trace in cast(Sequence[Any], figure.data)
        if is_map(trace) and _axis_name(trace, axis) == name
        for edge in _edges(np.asarray(trace[axis], dtype=float))
    ]
    ends = [min(edges), max(edges)] if edges else [-_MARGIN, 1 + _MARGIN]
    # Labels of sites need no title; shares do, below the lowest of shared axes.
    titled = found.title.text or (counts == "site" and found.showticklabels is not False)
    found.update(
        tickmode="auto",
        tickvals=None,
        ticktext=None,
        tick0=None,
        dtick=None,
        nticks=6,
        tickangle=0,
        tickformat=".0%",
        autorange=False,
        range=ends[::-1] if downwards else ends,
    )
    if titled:
        found.title.text = TITLE
    elif edges and axis == "y":
        # The same shares stand beside the first map of the row.
        found.showticklabels = False


def _edges(places: NDArray[np.float64]) -> tuple[float, float]:
    half = float(np.diff(places).min()) / 2 if len(places) > 1 else 0.5
    return float(places.min()) - half, float(places.max()) + half
