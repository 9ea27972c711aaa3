"""Traces of ``attention-entropy`` by depth: heads, their means, the ceiling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from normlens.figures import theme
from normlens.figures.declared import meaning


def head_points(frame: pd.DataFrame, look: theme.Identity, shift: float) -> go.Scatter:
    """The heads of one model, by layer."""
    # A fixed sequence instead of random jitter: equal results draw equal figures.
    jitter = (np.arange(len(frame)) * 0.618034 % 1 - 0.5) * 0.16
    return go.Scatter(
        x=frame["layer"].to_numpy(float) + shift + jitter,
        y=frame["normalised"].to_numpy(float),
        mode="markers",
        name=look.label,
        legendgroup=look.model,
        showlegend=False,
        marker={"color": look.colour, "size": 5, "opacity": 0.4},
        customdata=frame[["layer", "head", "first_mass"]].to_numpy(float),
        meta=meaning(x="layer", columns=("layer", "head"), model=look.model, mark="point"),
        hovertemplate=(
            "L%{customdata[0]}.H%{customdata[1]} · %{fullData.name}<br>%{y:.1%}"
            "<br>on the first token %{customdata[2]:.1%}<extra></extra>"
        ),
    )


def depth_line(mean: pd.Series, look: theme.Identity, name: str, shown: str) -> go.Scatter:
    """A mean over heads, by layer."""
    return go.Scatter(
        x=mean.index.to_numpy(float),
        y=mean.to_numpy(float),
        mode="lines+markers",
        name=name,
        legendgroup=look.model,
        line={"color": look.colour, "width": 2, "dash": look.dash},
        marker={"symbol": look.symbol, "size": 8},
        meta=meaning(x="layer", model=look.model),
        hovertemplate=f"layer %{{x}} · %{{fullData.name}}<br>{shown}<extra></extra>",
    )


def rest_line(mean: pd.Series, look: theme.Identity) -> go.Scatter:
    """The same without the part of the sink."""
    name = f"{look.label}: without sink"
    line = depth_line(mean, look, name, "%{y:.4g} nats")
    style: dict[str, Any] = {"symbol": f"{look.symbol}-open", "line": {"width": 1.5}}
    return line.update(legendgroup=f"{look.model} rest", line={"width": 1}, marker=style)


def distinct_ceilings(ceilings: Mapping[str, pd.Series]) -> dict[str, pd.Series]:
    """Ceilings that differ, by the first model of each.

    Models that read the same text in the same way share one.
    """
    kept: dict[str, pd.Series] = {}
    for model, ceiling in ceilings.items():
        if not any(ceiling.equals(other) for other in kept.values()):
            kept[model] = ceiling
    return kept


def ceiling_line(ceiling: pd.Series, model: str, *, first: bool) -> go.Scatter:
    """The largest entropy there can be, by layer of the model."""
    return go.Scatter(
        x=ceiling.index.to_numpy(float),
        y=ceiling.to_numpy(float),
        mode="lines",
        name="ceiling",
        legendgroup="ceiling",
        showlegend=first,
        meta=meaning(x="layer", model=model),
        line={"color": theme.NOT_APPLICABLE, "width": 1.5, "dash": "dot"},
        hovertemplate="layer %{x}<br>ceiling %{y:.4g} nats<extra></extra>",
    )
