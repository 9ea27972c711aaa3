"""Figures of ``gradients``."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.declared import meaning
from normlens.figures.depth import Panel, depth_note, panels
from normlens.figures.frame import (
    LOG_AXIS,
    asymmetric_error,
    finish,
    models_with_data,
    panel_titles,
    rows,
    stack_legend_once,
    tokens_note,
)
from normlens.figures.residual import OTHERS, POINTS, REST, STARTS
from normlens.figures.sites import site_axis
from normlens.results import Result

_PARTS = {"attention": "attention", "mlp": "MLP", "norms": "gains and biases of norms"}


def by_depth(result: Result) -> go.Figure:
    """Gradient norms relative to the last point, and free of the residual's scale."""
    shown = (
        Panel("gradient, over that after the last block", "relative", REST, "ratio (×)", log=True),
        Panel("|x| · |gradient|", "sensitivity", REST, "nats", log=True),
    )
    return finish(
        panels(result, "points", "point", shown, x_title=POINTS),
        result,
        "points",
        title="Gradients of a sequence's loss by depth (log)",
        notes=(
            tokens_note(result, "points", group="rest"),
            "tokens that predict, first ones left out; 95 % intervals below",
            depth_note(result, "points", "point"),
        ),
        height=480,
    )


def attenuation(result: Result) -> go.Figure:
    """What every norm leaves of a gradient, first tokens in a panel of their own."""
    titles = (OTHERS, STARTS)
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.13, subplot_titles=titles
    )
    looks = theme.of_result(result)
    frames = {m: rows(result, "norms", m).sort_values("order") for m in _models(result)}
    axis = site_axis(list(frames.values()))
    for panel, group in enumerate(("rest", "first"), start=1):
        for model, frame in frames.items():
            chosen = frame[frame["group"] == group]
            if not len(chosen):
                continue
            spaced, look = axis.spaced(chosen), looks[model]
            value = spaced["attenuation"]
            ends = spaced["attenuation_low"], spaced["attenuation_high"]
            figure.add_trace(
                go.Scatter(
                    x=spaced.index.to_numpy(),
                    y=value.to_numpy(float),
                    name=look.label,
                    legendgroup=model,
                    mode="lines+markers",
                    line={"color": look.colour, "dash": look.dash, "width": 1.8},
                    marker={"symbol": look.symbol, "size": 6},
                    error_y=asymmetric_error(value, *ends, look.colour),
                    customdata=spaced[["site", "n", "layer"]].to_numpy(object),
                    meta=meaning(x="site", columns=("site", "", "layer"), model=model),
                    hovertemplate=(
                        "<b>%{customdata[0]}</b> · %{fullData.name}<br>%{y:.4g} per residual unit"
                        "<br>n = %{customdata[1]:,}<extra></extra>"
                    ),
                ),
                row=panel,
                col=1,
            )
    stack_legend_once(figure)
    panel_titles(figure, titles)
    figure.update_xaxes(**axis.axis())
    figure.update_yaxes(title_text="per residual unit", **LOG_AXIS)
    return finish(
        figure,
        result,
        "norms",
        title="What every norm leaves of a gradient: |Jᵀg| / |g| (log)",
        notes=(
            tokens_note(result, "norms", group="rest"),
            "about gain over scale; 95 % intervals",
            axis.note,
        ),
        height=480,
    )


def parameters(result: Result) -> go.Figure:
    """Gradients by the parameters of every block, times the parameters' own norm."""
    present = {part for m in _models(result) for part in result.tables["parameters"]["part"]}
    shown = tuple(
        Panel(title, "sensitivity", (("part", part),), "nats/token", log=True)
        for part, title in _PARTS.items()
        if part in present
    )
    figure = panels(
        result, "parameters", "layer", shown or (Panel("", "", (), ""),), x_title="block"
    )
    return finish(
        figure,
        result,
        "parameters",
        title="|W| · |gradient by W| of every block (nats/token, log)",
        notes=(
            tokens_note(result, "parameters"),
            "mean over single sequences, their noise included; 95 % intervals",
            depth_note(result, "parameters", "layer"),
        ),
        height=60 + 150 * max(1, len(shown)),
    )


def _models(result: Result) -> list[str]:
    return models_with_data(result, "norms")
