"""Figures of ``output``."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.comparison import Difference, difference
from normlens.figures import theme
from normlens.figures.frame import (
    asymmetric_error,
    finish,
    models_with_data,
    panel_titles,
    rows,
    tokens_note,
)
from normlens.figures.tokens import shorten
from normlens.results import Result

_ROW = 30


def loss(result: Result) -> go.Figure:
    """Cross-entropy of every model with its interval, and its difference from the first."""
    models = models_with_data(result, "summary")
    compared = len(models) > 1
    titles = ("cross-entropy (nats/token)", f"difference from {shorten(result.models[0])}")
    figure = make_subplots(
        rows=2 if compared else 1, cols=1, vertical_spacing=0.2, subplot_titles=titles
    )
    looks = theme.of_result(result)
    for y, model in enumerate(models):
        row = _all_tokens(result, model)
        figure.add_trace(_loss_dot(row, y, looks[model]), row=1, col=1)
        delta = difference(result, "cross_entropy", model, result.models[0])
        if compared and delta is not None and np.isfinite(delta.value):
            figure.add_trace(_delta_dot(delta, y, looks[model]), row=2, col=1)
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(models))),
        ticktext=[looks[model].label for model in models],
        range=[len(models) - 0.4, -0.6],
        showgrid=False,
        zeroline=False,
    )
    figure.update_xaxes(tickformat=".4~g")
    if compared:
        figure.update_xaxes(zeroline=True, zerolinewidth=2, tickformat="+.4~g", row=2, col=1)
    panel_titles(figure, titles if compared else titles[:1])
    figure.update_layout(showlegend=False)
    return finish(
        figure,
        result,
        "summary",
        title="Loss on held-out text, 95 % intervals (nats/token)",
        notes=(
            tokens_note(result, "summary", group="all"),
            "differences paired by document" if compared else "",
        ),
        height=(2 if compared else 1) * (60 + _ROW * max(1, len(models))),
    )


def calibration(result: Result) -> go.Figure:
    """Reliability diagram of the top-1 probability, and how many tokens each bin holds."""
    titles = ("accuracy against confidence", "share of tokens by confidence")
    figure = make_subplots(
        rows=2,
        cols=1,
        row_heights=[0.74, 0.26],
        shared_xaxes=True,
        vertical_spacing=0.12,
        subplot_titles=titles,
    )
    figure.add_trace(
        go.Scatter(
            x=[0, 1],
            y=[0, 1],
            mode="lines",
            showlegend=False,
            hoverinfo="skip",
            line={"color": theme.NOT_APPLICABLE, "width": 1, "dash": "dot"},
        ),
        row=1,
        col=1,
    )
    looks = theme.of_result(result)
    for model in models_with_data(result, "calibration"):
        bins = rows(result, "calibration", model).sort_values("low")
        bins = bins[bins["n"] > 0]
        figure.add_trace(_reliability(bins, looks[model]), row=1, col=1)
        figure.add_trace(_bin_share(bins, looks[model]), row=2, col=1)
    panel_titles(figure, titles)
    figure.update_xaxes(range=[0, 1], tickformat=".0%")
    figure.update_xaxes(title_text="top-1 probability", row=2, col=1)
    figure.update_yaxes(range=[0, 1], tickformat=".0%", title_text="top-1 accuracy", row=1, col=1)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero", title_text="tokens", row=2, col=1)
    return finish(
        figure,
        result,
        "calibration",
        title="Calibration of the top-1 probability",
        notes=(
            tokens_note(result, "summary", group="all"),
            "dotted: perfect; below it the model is too sure",
        ),
        height=480,
    )


def quantiles(result: Result) -> go.Figure:
    """Quantiles of the per-token cross-entropy, evenly spaced whatever their levels."""
    figure = go.Figure()
    models = models_with_data(result, "quantiles")
    frames = {m: rows(result, "quantiles", m).dropna(subset="quantile") for m in models}
    levels = sorted({q for frame in frames.values() for q in frame["quantile"]})
    position = {level: i for i, level in enumerate(levels)}
    looks = theme.of_result(result)
    for model in models:
        frame = frames[model].sort_values("quantile")
        look = looks[model]
        figure.add_trace(
            go.Scatter(
                x=[position[q] for q in frame["quantile"]],
                y=frame["cross_entropy"].to_numpy(float),
                name=look.label,
                mode="lines+markers",
                line={"color": look.colour, "dash": look.dash, "width": 2},
                marker={"symbol": look.symbol, "size": 7},
                customdata=frame[["quantile"]].to_numpy(float),
                hovertemplate=(
                    "%{fullData.name}<br>%{customdata[0]:.4~%} of tokens below %{y:.4g} nats"
                    "<extra></extra>"
                ),
            )
        )
    figure.update_xaxes(
        tickmode="array",
        tickvals=list(range(len(levels))),
        ticktext=[f"{100 * level:.6g} %" for level in levels],
        title_text="share of tokens below",
        zeroline=False,
    )
    figure.update_yaxes(type="log", title_text="cross-entropy (nats)", dtick=1)
    return finish(
        figure,
        result,
        "quantiles",
        title="Per-token cross-entropy by quantile (nats, log)",
        notes=(tokens_note(result, "summary", group="all"),),
        height=320,
    )


def _all_tokens(result: Result, model: str) -> pd.DataFrame:
    frame = rows(result, "summary", model)
    return frame[frame["group"] == "all"]


def _loss_dot(row: pd.DataFrame, y: int, look: theme.Identity) -> go.Scatter:
    value = row["cross_entropy"]
    columns = ["cross_entropy_low", "cross_entropy_high", "perplexity", "entropy", "ece", "top1"]
    return go.Scatter(
        x=value.to_numpy(float),
        y=[y] * len(row),
        error_x=asymmetric_error(
            value, row["cross_entropy_low"], row["cross_entropy_high"], look.colour
        ),
        mode="markers",
        name=look.label,
        marker={"color": look.colour, "symbol": look.symbol, "size": 11},
        customdata=row[columns].to_numpy(float),
        hovertemplate=(
            "<b>%{fullData.name}</b><br>%{x:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}] "
            "nats/token<br>perplexity %{customdata[2]:.4g}<br>entropy %{customdata[3]:.4g} nats"
            "<br>calibration error %{customdata[4]:.4g}<br>top-1 %{customdata[5]:.4g}"
            "<extra></extra>"
        ),
    )


def _delta_dot(delta: Difference, y: int, look: theme.Identity) -> go.Scatter:
    value, low, high = (pd.Series([v]) for v in (delta.value, delta.low, delta.high))
    return go.Scatter(
        x=[delta.value],
        y=[y],
        error_x=asymmetric_error(value, low, high, look.colour),
        mode="markers",
        name=look.label,
        marker={"color": look.colour, "symbol": look.symbol, "size": 11},
        customdata=[[delta.low, delta.high]],
        hovertemplate=(
            "<b>%{fullData.name}</b><br>%{x:+.4g} [%{customdata[0]:+.4g}, %{customdata[1]:+.4g}] "
            "nats/token<extra></extra>"
        ),
    )


def _reliability(bins: pd.DataFrame, look: theme.Identity) -> go.Scatter:
    return go.Scatter(
        x=bins["confidence"].to_numpy(float),
        y=bins["accuracy"].to_numpy(float),
        mode="lines+markers",
        name=look.label,
        legendgroup=look.model,
        line={"color": look.colour, "dash": look.dash, "width": 2},
        marker={"symbol": look.symbol, "size": 7},
        customdata=bins[["low", "high", "n"]].to_numpy(float),
        hovertemplate=(
            "%{fullData.name}<br>confidence %{x:.4g}, accuracy %{y:.4g}"
            "<br>bin %{customdata[0]:.4g}–%{customdata[1]:.4g}, n = %{customdata[2]:,}"
            "<extra></extra>"
        ),
    )


def _bin_share(bins: pd.DataFrame, look: theme.Identity) -> go.Scatter:
    centres = (bins["low"] + bins["high"]) / 2
    return go.Scatter(
        x=centres.to_numpy(float),
        y=(bins["n"] / bins["n"].sum()).to_numpy(float),
        mode="lines",
        name=look.label,
        legendgroup=look.model,
        showlegend=False,
        line={"color": look.colour, "dash": look.dash, "width": 1.5, "shape": "hvh"},
        hovertemplate="%{fullData.name}<br>%{y:.4~%} of tokens<extra></extra>",
    )
