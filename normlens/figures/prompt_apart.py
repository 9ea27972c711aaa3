"""Maps of sizes by place and position of one prompt, the first token in a panel of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.declared import meaning
from normlens.figures.frame import panel_titles
from normlens.figures.limits import robust_limits
from normlens.figures.prompt_maps import (
    BAR,
    Matrix,
    cells,
    details_of,
    row_axis,
    shown,
    token_axis,
)

_BETWEEN = 100
_MOST_ROWS_WITH_TEXT = 40


@dataclass(frozen=True)
class SizeMap:
    """One panel.

    Attributes:
        title: over it, escaped.
        values: ``[place position]``, positive, NaN where there is none; or the ratio of two.
        places: names of the rows, escaped.
        tokens: of the prompt.
        model: whose values they are; of a ratio the one it is over.
        keys: what selections read of a cell, one column per field, ``[place field]``.
        against: of a ratio, what it is over.
    """

    title: str
    values: Matrix
    places: tuple[str, ...]
    tokens: tuple[str, ...]
    model: str
    keys: NDArray[Any]
    against: str = ""


def ratio_of(title: str, first: SizeMap, second: SizeMap) -> SizeMap:
    """The second over the first, place by place."""
    values = second.values / first.values
    return SizeMap(
        title, values, first.places, first.tokens, first.model, first.keys, "the first model's"
    )


def over_median(one: SizeMap) -> SizeMap:
    """Every place's values over their median over the tokens after the first."""
    known = np.isfinite(one.values[:, 1:]).any(1)
    median = np.full((len(one.values), 1), np.nan)
    median[known] = np.nanmedian(one.values[known, 1:], axis=1, keepdims=True)
    return replace(one, values=one.values / median, against="the median token's there")


def size_maps(
    maps: Sequence[SizeMap], *, what: str, columns: Sequence[str] = (), y: str = ""
) -> tuple[go.Figure, int, str]:
    """Maps below each other on a common log colour scale, and the ratio of two on its own.

    Args:
        maps: one per model, and perhaps their ratio.
        what: the quantity's name, for the pointer.
        columns: names of the fields of ``keys``, for selections.
        y: what rows count, for selections.

    Returns:
        The figure, its height without header, and a note on clipped cells.
    """
    depth = max((len(one.places) for one in maps), default=1)
    plot = float(np.clip(15 * depth, 110, 560))
    count = max(1, len(maps))
    height = count * (plot + _BETWEEN)
    figure = make_subplots(
        rows=count,
        cols=2,
        column_widths=[0.12, 0.88],
        horizontal_spacing=0.015,
        vertical_spacing=_BETWEEN / height if count > 1 else 0,
        subplot_titles=[title for one in maps for title in ("", one.title)] or None,
    )
    for row, one in enumerate(maps, start=1):
        meta = meaning(x="position", y=y, columns=columns, model=one.model)
        for column, part in ((1, slice(0, 1)), (2, slice(1, None))):
            for trace in _traces(one, part, what, meta, with_text=column == 1):
                figure.add_trace(trace, row=row, col=column)
        figure.update_xaxes(
            **token_axis(one.tokens[:1]), tickangle=-60, row=row, col=1, title_text=""
        )
        figure.update_xaxes(**token_axis(one.tokens[1:], 1), tickangle=-60, row=row, col=2)
        axis = row_axis(one.places, most=round(plot / 13))
        figure.update_yaxes(**axis, row=row, col=1)
        figure.update_yaxes(**axis | {"showticklabels": False, "ticks": ""}, row=row, col=2)
    panel_titles(figure, [title for title in (one.title for one in maps) if title])
    note = _colours(figure, maps)
    return figure, round(height), note


def _traces(
    one: SizeMap, part: slice, what: str, meta: Mapping[str, Any], *, with_text: bool
) -> tuple[go.Heatmap, go.Heatmap]:
    values = one.values[:, part]
    words = np.array(shown(one.tokens)[part], dtype=object)
    fields = [one.keys[:, i : i + 1] for i in range(one.keys.shape[1])]
    shape = (values.shape[0], values.shape[1])
    names = np.array(one.places, dtype=object)[:, None]
    details = details_of(shape, *fields, values, words[None, :], names)
    after = one.keys.shape[1]
    number = f"%{{customdata[{after}]:.4g}}"
    said = f"{number} times {one.against}" if one.against else f"{what} {number}"
    text = None
    if with_text and len(one.places) <= _MOST_ROWS_WITH_TEXT:
        text = [["" if not np.isfinite(v) else f"{v:.3g}" for v in line] for line in values]
    return cells(
        np.log10(values),
        x=range(values.shape[1]) if part.start == 0 else range(1, 1 + values.shape[1]),
        y=range(values.shape[0]),
        coloraxis="coloraxis2" if one.against else "coloraxis",
        hover=(
            f"<b>%{{customdata[{after + 2}]}}</b> at %{{x}}: “%{{customdata[{after + 1}]}}”"
            f"<br>{said}"
        ),
        details=details,
        meta=meta,
        absent="no scale",
        text=text,
    )


def _colours(figure: go.Figure, maps: Sequence[SizeMap]) -> str:
    """Colours span every token but the first; the first's number stands in its cell."""
    sizes = np.concatenate([[np.nan], *(_sizes(one) for one in maps if not one.against)])
    known = sizes[np.isfinite(sizes)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    ratios = np.concatenate([[np.nan], *(_sizes(one) for one in maps if one.against)])
    limits = robust_limits(ratios, signed=True)
    reach = max(limits.high, 0.02)
    figure.update_layout(
        showlegend=False,
        coloraxis={
            "colorscale": theme.SEQUENTIAL,
            "cmin": low,
            "cmax": high,
            "showscale": bool(known.size),
            "colorbar": {"y": 1, "yanchor": "top", **BAR, **_ticks(low, high)},
        },
        coloraxis2={
            "colorscale": [list(stop) for stop in theme.DIVERGING],
            "cmin": -reach,
            "cmax": reach,
            "showscale": len(ratios) > 1,
            "colorbar": {"y": 0, "yanchor": "bottom", **BAR, **_ticks(-reach, reach, "×")},
        },
    )
    return limits.note if len(ratios) > 1 else ""


def _sizes(one: SizeMap) -> Matrix:
    return np.log10(one.values[:, 1:]).ravel()


def _ticks(low: float, high: float, sign: str = "") -> dict[str, Any]:
    """Ticks of a log colour bar, as the numbers themselves."""
    at = np.linspace(low, high, 5)
    return {
        "tickmode": "array",
        "tickvals": at.tolist(),
        "ticktext": [f"{sign}{10**value:.3g}" for value in at],
    }
