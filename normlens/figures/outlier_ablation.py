"""Figures of ``outlier-ablation``."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.declared import meaning
from normlens.figures.frame import (
    LOG_AXIS,
    asymmetric_error,
    dodge,
    finish,
    models_with_data,
    panel_titles,
    rows,
    stack_legend_once,
    tokens_note,
)
from normlens.figures.limits import SymmetricLog
from normlens.results import Result

_AXIS = SymmetricLog(linear=1e-3)
_LABELS = {
    ("dimensions", "residual"): "residual = 0",
    ("dimensions", "norm_output"): "norm output = 0",
    ("massive", "zero"): "massive = 0",
    ("massive", "mean"): "massive = mean",
}
_WHERE = "residual, norm output: where the outlier dimensions are set to 0"
_ANGLE = -40
_SINK_LABELS = {("intact", "intact"): "intact", **_LABELS}
_QUANTITIES = {
    "inverse_scale": "1/scale",
    "output_variance": "variance of the norm's output",
    "value_norm": "norm of the value vector",
}


def effects(result: Result) -> go.Figure:
    """Change of loss under every ablation, random dimensions beside the outliers."""
    figure = go.Figure()
    looks = theme.of_result(result)
    models = models_with_data(result, "effects")
    places = list(_LABELS)
    shown: list[float] = []
    for i, model in enumerate(models):
        look = looks[model]
        frame = rows(result, "effects", model)
        where = pd.Series(
            [places.index(key) for key in zip(frame["what"], frame["how"], strict=True)],
            frame.index,
            dtype=float,
        )
        for chosen in ("outlier", "random"):
            part = frame[frame["chosen"] == chosen]
            figure.add_trace(
                _points(part, where[part.index] + dodge(i, len(models), 0.5), look, chosen)
            )
        shown += [float(v) for c in ("delta_low", "delta_high", "delta_loss") for v in frame[c]]
    figure.add_hline(y=0, line={"width": 1, "dash": "dot"})
    figure.update_xaxes(
        tickmode="array",
        tickvals=list(range(len(places))),
        ticktext=list(_LABELS.values()),
        range=[-0.6, len(places) - 0.4],
        tickangle=_ANGLE,
        zeroline=False,
    )
    figure.update_yaxes(title_text="change of loss (nats/token)", **_AXIS.axis(shown))
    return finish(
        figure,
        result,
        "effects",
        title="What the loss loses without them (nats/token)",
        notes=(
            tokens_note(result, "effects"),
            "filled: the outliers; open: as many random dimensions, one mark per draw",
            _WHERE,
            "95 % paired intervals; logarithmic in both directions, linear below 0.001",
            *_stand_ins(result),
        ),
        height=380,
    )


def sinks(result: Result) -> go.Figure:
    """Sink rate of the intact model and under each ablation of the outliers."""
    figure = go.Figure()
    looks = theme.of_result(result)
    for model in models_with_data(result, "sinks"):
        frame = rows(result, "sinks", model)
        look = looks[model]
        figure.add_trace(
            go.Bar(
                x=[_SINK_LABELS[k] for k in zip(frame["what"], frame["how"], strict=True)],
                y=frame["sink_rate"].to_numpy(float),
                error_y=asymmetric_error(
                    frame["sink_rate"], frame["sink_low"], frame["sink_high"], theme.NOT_APPLICABLE
                ),
                name=look.label,
                marker={"color": look.colour},
                customdata=frame[["first_token_mass", "n"]].to_numpy(object),
                hovertemplate=(
                    "%{x} · %{fullData.name}<br>sink rate %{y:.3p}<br>mean attention to the "
                    "first token %{customdata[0]:.3g}<br>n = %{customdata[1]} sequences"
                    "<extra></extra>"
                ),
            )
        )
    figure.update_yaxes(title_text="share of heads", tickformat=".0%", rangemode="tozero")
    _numeric(figure)
    figure.update_layout(barmode="group", bargap=0.25)
    return finish(
        figure,
        result,
        "sinks",
        title="Heads that are an attention sink (share of heads)",
        notes=(
            tokens_note(result, "sinks").replace("tokens", "sequences"),
            "95 % intervals; the first token's mean attention above epsilon",
            _WHERE,
            *_stand_ins(result),
        ),
        height=340,
    )


def chain(result: Result) -> go.Figure:
    """What norms make of spikes: quantities at spike tokens over those at all others."""
    found = result.tables["chain"].dropna(subset=["value"])
    shown = [quantity for quantity in _QUANTITIES if (found["quantity"] == quantity).any()]
    shown = shown or list(_QUANTITIES)
    titles = tuple(_QUANTITIES[quantity] for quantity in shown)
    figure = make_subplots(
        rows=len(shown), cols=1, shared_xaxes=True, vertical_spacing=0.09, subplot_titles=titles
    )
    looks = theme.of_result(result)
    for model in models_with_data(result, "chain"):
        look = looks[model]
        frame = rows(result, "chain", model)
        for panel, quantity in enumerate(shown, start=1):
            part = frame[frame["quantity"] == quantity]
            if not len(part):
                continue
            table = part.pivot(index="layer", columns="tokens", values="value")
            if not {"spike", "rest"} <= set(table.columns):
                continue
            figure.add_trace(_ratio(table, look), row=panel, col=1)
    stack_legend_once(figure)
    panel_titles(figure, titles)
    for panel in range(1, len(shown) + 1):
        figure.add_hline(y=1, line={"width": 1, "dash": "dot"}, row=panel, col=1)  # pyright: ignore[reportArgumentType] plotly takes numbers
    figure.update_yaxes(title_text="ratio (1)", **LOG_AXIS)
    figure.update_xaxes(title_text="layer", row=len(shown), col=1)
    return finish(
        figure,
        result,
        "chain",
        title="What a norm makes of a spike: spike tokens over others (ratio, log)",
        notes=(
            tokens_note(result, "chain", tokens="spike").replace("tokens", "spike tokens"),
            "at the norm before attention, intact model",
            *_stand_ins(result),
        ),
        height=160 * len(shown),
    )


def _points(frame: pd.DataFrame, x: pd.Series, look: theme.Identity, chosen: str) -> go.Scatter:
    ends = {
        c: pd.Series(_AXIS.position(frame[c]), frame.index)
        for c in ("delta_loss", "delta_low", "delta_high")
    }
    random = chosen == "random"
    details = frame[["dimensions", "delta_loss", "delta_low", "delta_high", "drift", "n"]]
    return go.Scatter(
        x=x.to_numpy() + (0.06 if random else 0.0),
        y=ends["delta_loss"].to_numpy(),
        error_y=asymmetric_error(
            ends["delta_loss"], ends["delta_low"], ends["delta_high"], look.colour
        ),
        mode="markers",
        name=f"{look.label} (random)" if random else look.label,
        marker={
            "symbol": f"{look.symbol}-open" if random else look.symbol,
            "size": 8 if random else 11,
            "color": look.colour,
        },
        customdata=details.to_numpy(object),
        hovertemplate=(
            "%{fullData.name}<br>dimensions %{customdata[0]}<br>Δloss %{customdata[1]:+.4g} "
            "[%{customdata[2]:+.4g}, %{customdata[3]:+.4g}] nats/token<br>residual norm "
            "%{customdata[4]:.4g} of the intact one<br>n = %{customdata[5]:,}<extra></extra>"
        ),
    )


def _ratio(table: pd.DataFrame, look: theme.Identity) -> go.Scatter:
    ratio = table["spike"].astype(float) / table["rest"].astype(float)
    return go.Scatter(
        x=table.index.to_numpy(int),
        y=ratio.to_numpy(float),
        mode="lines+markers",
        name=look.label,
        legendgroup=look.model,
        line={"color": look.colour, "dash": look.dash, "width": 2},
        marker={"color": look.colour, "symbol": look.symbol, "size": 6},
        customdata=table[["spike", "rest"]].to_numpy(float),
        meta=meaning(x="layer", model=look.model),
        hovertemplate=(
            "layer %{x} · %{fullData.name}<br>%{y:.4g} times the others<br>spikes "
            "%{customdata[0]:.4g}, others %{customdata[1]:.4g}<extra></extra>"
        ),
    )


def _stand_ins(result: Result) -> list[str]:
    """Which models have no massive activation, and what stands in for it."""
    said: list[str] = []
    for model in models_with_data(result, "effects"):
        frame = rows(result, "effects", model)
        for target in frame.loc[frame["what"] == "massive", "target"].unique()[:1]:
            if str(target).startswith("no massive"):
                said.append(f"{model}: {target}")
    return said


def _numeric(figure: go.Figure) -> None:
    """Named places on a numeric axis, so that every figure has one."""
    traces: Any = figure.data
    names = [label for label in _SINK_LABELS.values() if any(label in t.x for t in traces)]
    for trace in traces:
        trace.x = [names.index(label) for label in trace.x]
        trace.hovertemplate = trace.hovertemplate.replace("%{x} · ", "")
    figure.update_xaxes(
        tickmode="array", tickvals=list(range(len(names))), ticktext=names, tickangle=_ANGLE
    )
