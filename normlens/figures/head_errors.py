"""Traces of the heads' attribution errors: the map, the strip of points and their mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from normlens.figures import theme
from normlens.figures.declared import meaning
from normlens.figures.frame import asymmetric_error, rows
from normlens.results import Result


def side(index: pd.Series) -> int:
    """Number of layers or heads, from their indices."""
    return int(index.max()) + 1 if len(index) else 1


def head_map(heads: pd.DataFrame, model: str) -> tuple[go.Heatmap, go.Heatmap]:
    """Grey cells for what has no value, and the values of a model above them."""
    shape = side(heads["layer"]), side(heads["head"])
    values, low, high = (np.full(shape, np.nan) for _ in range(3))
    where = heads["layer"].to_numpy(int), heads["head"].to_numpy(int)
    values[where] = heads["nmae"].to_numpy(float)
    low[where], high[where] = heads["nmae_low"].to_numpy(float), heads["nmae_high"].to_numpy(float)
    absent = np.where(np.isfinite(values), np.nan, 0.0)
    grey = go.Heatmap(
        z=absent,
        showscale=False,
        colorscale=[[0, theme.NOT_APPLICABLE], [1, theme.NOT_APPLICABLE]],
        hovertemplate="L%{y}.H%{x}: no value<extra></extra>",
        xgap=1,
        ygap=1,
    )
    text = [["" if not np.isfinite(v) else f"{100 * v:.0f}" for v in line] for line in values]
    coloured = go.Heatmap(
        z=values,
        text=text,
        texttemplate="%{text}",
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
        customdata=np.stack([low, high], -1),
        meta=meaning(x="head", y="layer", model=model),
        hovertemplate=(
            "L%{y}.H%{x}<br>NMAE %{z:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}]"
            "<extra></extra>"
        ),
        hoverongaps=False,
    )
    return grey, coloured


def strip(heads: pd.DataFrame, y: int, look: theme.Identity) -> go.Scatter:
    """The error of every head of one model on a line at height ``y``."""
    # A fixed sequence instead of random jitter: equal results draw equal figures.
    jitter = (np.arange(len(heads)) * 0.618034 % 1 - 0.5) * 0.5
    return go.Scatter(
        x=heads["nmae"].to_numpy(float),
        y=y + jitter,
        mode="markers",
        name=look.label,
        marker={"color": look.colour, "size": 7, "opacity": 0.55},
        customdata=heads[["component", "layer", "head"]].to_numpy(object),
        meta=meaning(columns=("", "layer", "head"), model=look.model, mark="point"),
        hovertemplate="%{fullData.name} %{customdata[0]}<br>NMAE %{x:.4g}<extra></extra>",
    )


def mean(result: Result, y: int, look: theme.Identity) -> go.Scatter:
    """The heads' mean error with its interval at height ``y``."""
    frame = rows(result, "groups", look.model)
    frame = frame[frame["type"] == "head"]
    return go.Scatter(
        x=frame["nmae"].to_numpy(float),
        y=[y] * len(frame),
        error_x=asymmetric_error(frame["nmae"], frame["nmae_low"], frame["nmae_high"], look.colour),
        mode="markers",
        name=look.label,
        marker={
            "symbol": "diamond",
            "size": 12,
            "color": look.colour,
            "line": {"color": theme.PAPER, "width": 1.5},
        },
        hovertemplate="%{fullData.name}<br>mean of heads %{x:.4g}<extra></extra>",
    )


def integer_axis(count: int, title: str) -> dict[str, Any]:
    """Axis properties for indices from 0, every k-th labelled."""
    step = max(1, -(-count // 8))
    return {
        "tickmode": "array",
        "tickvals": list(range(0, count, step)),
        "showgrid": False,
        "zeroline": False,
        "title_text": title,
        "range": [-0.5, count - 0.5],
        "ticklen": 0,
        "tickangle": 0,
        "showline": False,
    }
