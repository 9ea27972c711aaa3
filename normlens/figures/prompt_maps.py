"""What maps of one prompt share: cells, grey for what is not there, axes of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from normlens.comparison.lineage import relations
from normlens.figures import theme
from normlens.figures.frame import rows
from normlens.figures.tokens import token_ticks, visible
from normlens.results import Result

Matrix = NDArray[np.float64]
QUIET: dict[str, Any] = {"showgrid": False, "zeroline": False, "ticklen": 2, "showline": False}
"""Axis properties of a map."""


def cells(
    values: Matrix,
    *,
    x: Sequence[int],
    y: Sequence[int],
    coloraxis: str,
    hover: str,
    details: NDArray[Any],
    meta: Mapping[str, Any],
    absent: str = "no value",
    text: list[list[str]] | None = None,
) -> tuple[go.Heatmap, go.Heatmap]:
    """Grey cells for what has no value, and the values above them.

    Args:
        values: ``[y x]``; NaN is grey.
        x: positions of the columns.
        y: positions of the rows.
        coloraxis: of the layout.
        hover: template of the pointer's text; reads ``details`` as customdata.
        details: ``[y x field]``.
        meta: what the axes mean, for selections.
        absent: what the pointer says of a grey cell.
        text: in the cells.
    """
    gap = 1 if max(values.shape) <= 64 else 0
    shared: dict[str, Any] = {"x": list(x), "y": list(y), "xgap": gap, "ygap": gap}
    grey = go.Heatmap(
        z=np.where(np.isfinite(values), np.nan, 0.0),
        showscale=False,
        colorscale=[[0, theme.NOT_APPLICABLE], [1, theme.NOT_APPLICABLE]],
        opacity=0.35,
        hovertemplate=f"{absent}<extra></extra>",
        **shared,
    )
    coloured = go.Heatmap(
        z=values,
        coloraxis=coloraxis,
        customdata=details,
        hoverongaps=False,
        hovertemplate=f"{hover}<extra></extra>",
        meta=dict(meta),
        text=text,
        texttemplate="%{text}" if text else None,
        textfont={"size": 9} if text else None,
        **shared,
    )
    return grey, coloured


def details_of(shape: tuple[int, int], *fields: Any) -> NDArray[Any]:
    """Customdata ``[row column field]``; a field is one value, a column of rows, or a table."""
    full = [np.broadcast_to(np.asarray(field, dtype=object), shape) for field in fields]
    return np.stack(full, -1)


def token_axis(tokens: Sequence[str], start: int = 0, most: int = 30) -> dict[str, Any]:
    """Axis properties with ticks ``position:token``, positions counted from ``start``."""
    step = max(1, -(-len(tokens) // most))
    ticks = token_ticks([""] * start + list(tokens), most=10**9)
    kept = range(start, start + len(tokens), step)
    return {
        "tickmode": "array",
        "tickvals": [ticks.values[i] for i in kept],
        "ticktext": [ticks.labels[i] for i in kept],
        "tickfont": {"size": 10},
        "range": [start - 0.5, start + len(tokens) - 0.5],
        **QUIET,
    }


def row_axis(labels: Sequence[str], most: int = 40) -> dict[str, Any]:
    """Axis properties with a label at every k-th row, the first row on top."""
    step = max(1, -(-len(labels) // most))
    return {
        "tickmode": "array",
        "tickvals": list(range(0, len(labels), step)),
        "ticktext": [labels[i] for i in range(0, len(labels), step)],
        "tickfont": {"size": 10},
        "range": [len(labels) - 0.5, -0.5],
        **QUIET,
    }


def tokens_of(result: Result, table: str, model: str) -> list[str]:
    """The prompt's tokens, from a table with ``position`` and ``token``."""
    frame = rows(result, table, model)[["position", "token"]].drop_duplicates("position")
    return [str(token) for token in frame.sort_values("position")["token"]]


def shown(tokens: Sequence[str]) -> list[str]:
    """Tokens for the pointer's text."""
    return [visible(token) for token in tokens]


def are_related(result: Result, models: Sequence[str]) -> bool:
    """Whether there are two models and the same index means the same in both."""
    return len(models) == 2 and any(
        relation.related and {relation.model, relation.other} == set(models)
        for relation in relations(result.models, result.provenance)
    )


def scatter_into(frame: pd.DataFrame, columns: Sequence[str], value: str) -> NDArray[np.float64]:
    """An array over integer index columns, NaN where there is no row."""
    index = [frame[column].to_numpy(int) for column in columns]
    shape = [int(i.max()) + 1 if len(i) else 0 for i in index]
    array = np.full(shape, np.nan)
    array[tuple(index)] = frame[value].to_numpy(float)
    return array


BAR: dict[str, Any] = {"lenmode": "pixels", "len": 150, "thickness": 12}
"""A colour bar that is no longer than it has to be, however tall the figure."""


def share_colours(reach: float, *, difference: bool) -> dict[str, Any]:
    """Layout of two colour axes: shares from 0 to 1, and their differences up to ``reach``."""
    return {
        "coloraxis": {
            "colorscale": theme.SEQUENTIAL,
            "cmin": 0.0,
            "cmax": 1.0,
            "colorbar": {"tickformat": ".0%", "y": 1, "yanchor": "top", **BAR},
        },
        "coloraxis2": {
            "colorscale": [list(stop) for stop in theme.DIVERGING],
            "cmin": -reach,
            "cmax": reach,
            "showscale": difference,
            "colorbar": {"tickformat": "+.2~%", "y": 0, "yanchor": "bottom", **BAR},
        },
    }
