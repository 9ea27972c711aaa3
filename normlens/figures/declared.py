"""What the axes and points of a trace mean, declared in its ``meta``.

``{"select": {"x": "head", "y": "layer"}, "select_customdata": ["", "site"], "model": "m"}``:
``select`` says what an axis counts, ``select_customdata`` names columns of customdata (empty:
none of these), ``select_all`` gives fields of the whole trace, and where two speak of one
field the column holds. The fields are those of
:class:`~normlens.comparison.selection.Selection`; an axis may also count ``point``, the places
before the blocks and after the last one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from normlens.comparison.selection import Selection
from normlens.figures.tokens import escape

FIELDS = tuple(field.name for field in fields(Selection))
Mark = Literal["", "x", "y", "point", "panel"]
_WHOLE_CUSTOMDATA = re.compile(r"%\{customdata(?=[:}])")


@dataclass(frozen=True)
class Declared:
    """A trace's declaration.

    Attributes:
        axes: what ``x`` and ``y`` count, where they count something.
        columns: names of the columns of customdata.
        constant: fields that are the same for all its points.
        model: whose the trace is, escaped; empty where it is not one model's.
        mark: how what is selected is marked: by a line that stands on ``x`` or ``y``, by a ring
            around the ``point``, by a frame around the ``panel``; empty for a cell's outline in
            maps and a line elsewhere.
        overlay: whether the trace only takes clicks for another one.
    """

    axes: Mapping[str, str]
    columns: tuple[str, ...]
    constant: Mapping[str, int | str]
    model: str = ""
    mark: Mark = ""
    overlay: bool = False


def meaning(
    *,
    x: str = "",
    y: str = "",
    columns: Sequence[str] = (),
    constant: Mapping[str, Any] | None = None,
    model: str = "",
    mark: Mark = "",
    overlay: bool = False,
) -> dict[str, Any]:
    """The ``meta`` of a trace; see :class:`Declared`."""
    said = {
        "select_customdata": list(columns),
        "select_all": dict(constant or {}),
        "model": escape(model),
        "mark": mark,
        "overlay": overlay,
    }
    axes = {axis: name for axis, name in (("x", x), ("y", y)) if name}
    return {"select": axes, **{key: value for key, value in said.items() if value}}


def declared(trace: Any) -> Declared | None:
    """The declaration of a trace, None where it has none."""
    meta = trace.meta
    if not isinstance(meta, dict) or not {"select", "select_customdata"} & set(meta):
        return None
    return Declared(
        axes=dict(meta.get("select") or {}),
        columns=tuple(meta.get("select_customdata") or ()),
        constant=dict(meta.get("select_all") or {}),
        model=str(meta.get("model", "")),
        mark=cast(Mark, meta.get("mark", "")),
        overlay=bool(meta.get("overlay", False)),
    )


def is_map(trace: Any) -> bool:
    """Whether a trace is a map of cells."""
    return isinstance(trace, go.Heatmap)


@dataclass(frozen=True)
class Points:
    """The points of a trace, or the cells of a map row by row: where they are.

    Attributes:
        x: coordinates, one for each point.
        y: likewise.
    """

    x: NDArray[Any]
    y: NDArray[Any]


def coordinates(trace: Any) -> Points:
    """Where the points or cells of a trace are; cells row by row."""
    if is_map(trace):
        height, width = np.shape(trace.z)
        x = np.arange(width) if trace.x is None else np.asarray(trace.x)
        y = np.arange(height) if trace.y is None else np.asarray(trace.y)
        return Points(np.tile(x, height), np.repeat(y, width))
    x, y = (np.asarray([] if v is None else v) for v in (trace.x, trace.y))
    count = max(len(x), len(y))
    return Points(
        x if len(x) else np.arange(count),
        y if len(y) else np.arange(count),
    )


def custom_rows(trace: Any, count: int) -> list[list[Any]]:
    """Customdata as one list per point or cell; empty lists where there is none."""
    if trace.customdata is None:
        return [[] for _ in range(count)]
    data = np.asarray(trace.customdata, dtype=object)
    return cast(list[list[Any]], data.reshape(count, -1).tolist()) if count else []


def with_column(trace: Any, values: Sequence[Any], name: str = "") -> int:
    """Give every point of a trace one more column of customdata, and say which it is.

    Args:
        trace: changed in place; its hover text stays as it was.
        values: one for each point, or each cell row by row.
        name: of the column in the declaration.
    """
    rows = custom_rows(trace, len(values))
    index = len(rows[0]) if rows else 0
    filled = [[*row, value] for row, value in zip(rows, values, strict=True)]
    data = np.empty((len(filled), index + 1), dtype=object)
    data[:] = filled
    if is_map(trace):
        data = data.reshape(*np.shape(trace.z), index + 1)
    trace.customdata = data
    rewrite_hover(trace, _WHOLE_CUSTOMDATA, "%{customdata[0]")
    known = declared(trace)
    columns = [*(known.columns if known else ())][:index]
    columns += [""] * (index - len(columns)) + [name]
    trace.meta = {**(trace.meta or {}), "select_customdata": columns}
    return index


def rewrite_hover(trace: Any, pattern: re.Pattern[str], replacement: str) -> None:
    """Replace in the hover text of a trace, one text or one per point."""
    text = trace.hovertemplate
    if isinstance(text, str):
        trace.hovertemplate = pattern.sub(replacement, text)
    elif text is not None:
        trace.hovertemplate = [pattern.sub(replacement, str(one)) for one in text]


def selected_fields(trace: Any) -> list[dict[str, int | str]]:
    """What each point or cell of a trace stands for; empty for undeclared traces."""
    known = declared(trace)
    if known is None:
        return []
    where = coordinates(trace)
    found: list[dict[str, int | str]] = [dict(known.constant) for _ in where.x]
    for axis, name in known.axes.items():
        # An axis of sites counts places; their labels are in customdata.
        if name in FIELDS and name != "site":
            for point, value in zip(found, where.x if axis == "x" else where.y, strict=True):
                _put(point, name, value)
    for point, row in zip(found, custom_rows(trace, len(found)), strict=True):
        for name, value in zip(known.columns, row, strict=False):
            if name in FIELDS:
                point.pop(name, None)
                _put(point, name, value)
    return found


def _put(point: dict[str, int | str], name: str, value: Any) -> None:
    read = as_field(name, value)
    if read is not None:
        point[name] = read


def next_block(points: Any) -> list[int | None]:
    """The block that follows each of a model's points; None after the last block."""
    whole = [int(point) for point in points]
    last = max(whole, default=0)
    return [point if point < last else None for point in whole]


def as_field(name: str, value: Any) -> int | str | None:
    """A value of a field, None where it is missing or no such value."""
    if name == "site":
        return value if isinstance(value, str) and value else None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return round(number) if np.isfinite(number) else None
