"""Figures of ``freeze-sweep``."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.declared import meaning
from normlens.figures.frame import (
    asymmetric_error,
    finish,
    models_with_data,
    panel_titles,
    rows,
    stack_legend_once,
    tokens_note,
)
from normlens.figures.limits import SymmetricLog
from normlens.figures.sites import site_axis
from normlens.figures.tokens import escape
from normlens.results import Result

_AXIS = SymmetricLog(linear=1e-3)
_HOVER = (
    "<b>%{customdata[0]}</b> · %{fullData.name}<br>Δloss %{customdata[1]:+.4g} "
    "[%{customdata[2]:+.4g}, %{customdata[3]:+.4g}] nats/token<br>KL %{customdata[4]:.4g} "
    "nats/token<br>scale fixed to %{customdata[5]:.4g}, first token %{customdata[6]:.4g}"
    "<br>n = %{customdata[7]:,}<extra></extra>"
)
_DETAILS = [
    "site",
    "delta_loss",
    "delta_low",
    "delta_high",
    "kl",
    "frozen_scale",
    "frozen_scale_first",
    "n",
    "layer",
]


def single(result: Result) -> go.Figure:
    """Change of loss and divergence when one site's scale is fixed to its mean."""
    titles = ("change of loss", "KL(intact ‖ frozen)")
    figure = make_subplots(
        rows=2,
        cols=1,
        row_heights=[0.62, 0.38],
        shared_xaxes=True,
        vertical_spacing=0.1,
        subplot_titles=titles,
    )
    looks = theme.of_result(result)
    frames = {model: _mode(result, model, "single") for model in _models(result)}
    axis = site_axis(list(frames.values()))
    for model, frame in frames.items():
        look = looks[model]
        common = {
            "x": axis.x(frame["site"]),
            "name": look.label,
            "legendgroup": model,
            "marker": {"color": look.colour},
            "customdata": frame[_DETAILS].to_numpy(object),
            "meta": meaning(x="site", columns=_DETAILS, model=model),
            "hovertemplate": _HOVER,
        }
        ends = {c: pd.Series(_AXIS.position(frame[c]), frame.index) for c in _DETAILS[1:4]}
        figure.add_trace(
            go.Bar(
                y=ends["delta_loss"].to_numpy(),
                error_y=asymmetric_error(
                    ends["delta_loss"], ends["delta_low"], ends["delta_high"], theme.NOT_APPLICABLE
                ),
                **common,
            ),
            row=1,
            col=1,
        )
        figure.add_trace(go.Bar(y=_AXIS.position(frame["kl"]), **common), row=2, col=1)
    stack_legend_once(figure)
    panel_titles(figure, titles)
    shown = [v for f in frames.values() for c in _DETAILS[1:4] for v in f[c]]
    divergences = [v for f in frames.values() for v in f["kl"]]
    figure.update_xaxes(**axis.axis())
    figure.update_yaxes(title_text="nats/token", **_AXIS.axis(shown), row=1, col=1)
    figure.update_yaxes(title_text="nats/token", **_AXIS.axis(divergences), row=2, col=1)
    figure.update_layout(barmode="group", bargap=0.25)
    return finish(
        figure,
        result,
        "sweep",
        title="What fixing one norm's scale to its mean costs (nats/token)",
        notes=(
            tokens_note(result, "sweep", mode="single"),
            "95 % paired intervals; logarithmic in both directions, linear below 0.001",
            axis.note,
        ),
        height=460,
    )


def cumulative(result: Result) -> go.Figure:
    """Change of loss as more and more scales are fixed, in removal order."""
    figure = go.Figure()
    looks = theme.of_result(result)
    frames = {model: _mode(result, model, "cumulative") for model in _models(result)}
    for model, frame in frames.items():
        look = looks[model]
        x = frame["step"].to_numpy(int)
        bounded = frame[frame["delta_low"].notna() & frame["delta_high"].notna()]
        steps = bounded["step"].tolist()
        figure.add_trace(
            go.Scatter(
                x=[*steps, *steps[::-1]],
                y=[*bounded["delta_high"], *bounded["delta_low"][::-1]],
                fill="toself",
                fillcolor=look.faded(0.16),
                mode="lines",
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
            )
        )
        figure.add_trace(
            go.Scatter(
                x=x,
                y=frame["delta_loss"].to_numpy(float),
                name=look.label,
                mode="lines+markers",
                line={"color": look.colour, "dash": look.dash, "width": 2},
                marker={"symbol": look.symbol, "size": 7},
                customdata=frame[_DETAILS].to_numpy(object),
                meta=meaning(columns=_DETAILS, model=model),
                hovertemplate="after fixing " + _HOVER,
            )
        )
    labels = _steps(frames)
    stride = max(1, math.ceil(len(labels) / 26))
    figure.update_xaxes(
        tickmode="array",
        tickvals=list(labels)[::stride],
        ticktext=list(labels.values())[::stride],
        tickangle=-60,
        title_text="scales fixed so far, in removal order",
    )
    figure.update_yaxes(title_text="change of loss (nats/token)", rangemode="tozero")
    return finish(
        figure,
        result,
        "sweep",
        title="What fixing scale after scale costs (nats/token)",
        notes=(
            tokens_note(result, "sweep", mode="cumulative"),
            "no fine-tuning in between; 95 % paired intervals",
        ),
        height=360,
    )


def _models(result: Result) -> list[str]:
    return models_with_data(result, "sweep")


def _mode(result: Result, model: str, mode: str) -> pd.DataFrame:
    frame = rows(result, "sweep", model)
    return frame[frame["mode"] == mode].sort_values("step")


def _steps(frames: dict[str, pd.DataFrame]) -> dict[int, str]:
    """What each step fixes: the site where models agree, else the step's number."""
    labels: dict[int, str] = {}
    for frame in frames.values():
        for step, site in zip(frame["step"], frame["site"], strict=True):
            label = escape(str(site))
            labels[int(step)] = label if labels.get(int(step), label) == label else str(step)
    return dict(sorted(labels.items()))
