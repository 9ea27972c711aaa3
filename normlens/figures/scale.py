"""Figures of ``scale``."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from normlens.figures.sites import SiteAxis, site_axis
from normlens.results import Result

_HOVER = (
    "<b>%{customdata[0]}</b> · %{fullData.name}<br>median %{customdata[1]:.4g}"
    "<br>5–95 % %{customdata[2]:.4g} – %{customdata[3]:.4g}<br>mean %{customdata[4]:.4g}, "
    "sd %{customdata[5]:.4g}<br>largest %{customdata[6]:.4g}<br>n = %{customdata[7]:,}"
    "<extra></extra>"
)
_SPREAD = ["site", "spread_low", "spread_high", "n", "layer"]
NOT_APPLIED = "dashed, open markers: would-be scale, not applied"


def by_site(result: Result) -> go.Figure:
    """Median scale and 5–95 % ribbon by site, first tokens in a panel of their own."""
    figure = make_subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        row_heights=[0.62, 0.38],
        vertical_spacing=0.11,
        subplot_titles=("every token but the first", "first token of each sequence"),
    )
    axis = _axis(result)
    for panel, group in enumerate(("rest", "first"), start=1):
        for identity, applied, frame in _lines(result, group):
            frame = axis.spaced(frame)
            if group == "rest":
                figure.add_trace(_ribbon(frame, identity), row=panel, col=1)
            figure.add_trace(_median(frame, identity, applied), row=panel, col=1)
        for identity, constant in _constants(result, group):
            figure.add_trace(_constant(axis, constant, identity), row=panel, col=1)
    stack_legend_once(figure)
    panel_titles(figure, ("every token but the first", "first token of each sequence"))
    figure.update_xaxes(**axis.axis())
    figure.update_yaxes(title_text="scale (residual units)", minor_dtick=1, **LOG_AXIS)
    return finish(
        figure,
        result,
        "scale",
        title="Scale of every norm: median and 5–95 % of tokens (residual units, log)",
        notes=(
            tokens_note(result, "scale", group="rest"),
            "bar: the constant a scale-free site divides by",
            NOT_APPLIED if _any_not_applied(result) else "",
            axis.note,
        ),
        height=520,
    )


def spread_by_site(result: Result) -> go.Figure:
    """Coefficient of variation of the scale over tokens, with its 95 % interval."""
    figure = go.Figure()
    axis = _axis(result)
    models = models_with_data(result, "scale")
    for identity, applied, frame in _lines(result, "rest"):
        frame = axis.spaced(frame)
        shift = dodge(models.index(identity.model), len(models), 0.36)
        spread = frame["spread"]
        figure.add_trace(
            go.Scatter(
                x=frame.index.to_numpy() + shift,
                y=spread.to_numpy(float),
                error_y=asymmetric_error(
                    spread, frame["spread_low"], frame["spread_high"], identity.colour
                ),
                mode="lines+markers",
                customdata=frame[_SPREAD].to_numpy(object),
                meta=meaning(x="site", columns=_SPREAD, model=identity.model),
                hovertemplate=(
                    "<b>%{customdata[0]}</b> · %{fullData.name}<br>spread %{y:.4g} "
                    "[%{customdata[1]:.4g}, %{customdata[2]:.4g}]<br>n = %{customdata[3]:,}"
                    "<extra></extra>"
                ),
                **_style(identity, applied),
            )
        )
    stack_legend_once(figure)
    figure.update_xaxes(**axis.axis())
    figure.update_yaxes(title_text="sd / mean", tickformat=".0%", rangemode="tozero")
    return finish(
        figure,
        result,
        "scale",
        title="Spread of the scale over tokens: sd / mean, 95 % interval",
        notes=(
            tokens_note(result, "scale", group="rest"),
            "first tokens left out; intervals resample documents",
            NOT_APPLIED if _any_not_applied(result) else "",
            axis.note,
        ),
        height=340,
    )


def first_token(result: Result) -> go.Figure:
    """Mean scale of first tokens over that of all others, by site."""
    figure = go.Figure()
    axis = _axis(result)
    for identity, applied, rest in _lines(result, "rest"):
        first = rows(result, "scale", identity.model)
        first = first[first["group"] == "first"].set_index("site")["mean"]
        rest = axis.spaced(rest)
        ratio = rest["site"].map(first).astype(float) / rest["mean"].astype(float)
        figure.add_trace(
            go.Scatter(
                x=rest.index.to_numpy(),
                y=ratio.to_numpy(),
                mode="lines+markers",
                customdata=rest[["site", "layer"]].to_numpy(object),
                meta=meaning(x="site", columns=("site", "layer"), model=identity.model),
                hovertemplate=(
                    "<b>%{customdata[0]}</b> · %{fullData.name}<br>%{y:.4g} times the others"
                    "<extra></extra>"
                ),
                **_style(identity, applied),
            )
        )
    stack_legend_once(figure)
    figure.add_hline(y=1, line={"width": 1, "dash": "dot"})
    figure.update_xaxes(**axis.axis())
    figure.update_yaxes(title_text="ratio (dimensionless)", **LOG_AXIS)
    return finish(
        figure,
        result,
        "scale",
        title="First token's scale over the others' (ratio of means, log)",
        notes=(
            tokens_note(result, "scale", group="first").replace("tokens", "first tokens"),
            NOT_APPLIED if _any_not_applied(result) else "",
            axis.note,
        ),
        height=320,
    )


def _axis(result: Result) -> SiteAxis:
    models = models_with_data(result, "scale")
    return site_axis([rows(result, "scale", model) for model in models])


def _lines(result: Result, group: str) -> Iterator[tuple[theme.Identity, bool, pd.DataFrame]]:
    """Per model, the rows whose scale is applied and those whose scale is not."""
    looks = theme.of_result(result)
    for model in models_with_data(result, "scale"):
        frame = rows(result, "scale", model)
        frame = frame[frame["group"] == group].sort_values("order")
        for applied in (True, False):
            part = frame[frame["applied"].astype(bool) == applied]
            if len(part):
                yield looks[model], applied, part


def _constants(result: Result, group: str) -> Iterator[tuple[theme.Identity, pd.DataFrame]]:
    for identity, applied, frame in _lines(result, group):
        constant = frame[frame["applied_scale"].notna()]
        if not applied and len(constant):
            yield identity, constant


def _any_not_applied(result: Result) -> bool:
    return any(not applied for _, applied, _ in _lines(result, "rest"))


def _style(identity: theme.Identity, applied: bool) -> dict[str, Any]:
    return {
        "name": identity.label if applied else f"{identity.label} (not applied)",
        "legendgroup": f"{identity.model} {applied}",
        "line": {
            "color": identity.colour,
            "width": 2,
            "dash": identity.dash if applied else theme.NOT_APPLIED_DASH,
        },
        "marker": {
            "symbol": identity.symbol if applied else f"{identity.symbol}-open",
            "size": 7,
            "line": {"width": 1.5 if not applied else 0},
        },
    }


def _ribbon(frame: pd.DataFrame, identity: theme.Identity) -> go.Scatter:
    """One closed outline per unbroken run of sites; NaN lifts the pen."""
    missing = frame["q05"].isna() | frame["q95"].isna()
    x: list[float] = []
    y: list[float] = []
    for _, run in frame[~missing].groupby(missing.cumsum()[~missing]):
        x += [*run.index, *run.index[::-1], math.nan]
        y += [*run["q95"].astype(float), *run["q05"].astype(float)[::-1], math.nan]
    return go.Scatter(
        x=x[:-1],
        y=y[:-1],
        fill="toself",
        fillcolor=identity.faded(0.16),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        meta=meaning(model=identity.model),
    )


def _median(frame: pd.DataFrame, identity: theme.Identity, applied: bool) -> go.Scatter:
    columns = ["site", "q50", "q05", "q95", "mean", "sd", "maximum", "n", "layer"]
    return go.Scatter(
        x=frame.index.to_numpy(),
        y=frame["q50"].to_numpy(float),
        mode="lines+markers",
        customdata=frame[columns].to_numpy(object),
        meta=meaning(x="site", columns=columns, model=identity.model),
        hovertemplate=_HOVER,
        **_style(identity, applied),
    )


def _constant(axis: SiteAxis, frame: pd.DataFrame, identity: theme.Identity) -> go.Scatter:
    return go.Scatter(
        x=axis.x(frame["site"]),
        y=frame["applied_scale"].to_numpy(float),
        mode="markers",
        name=f"{identity.label}: constant",
        legendgroup=f"{identity.model} constant",
        marker={
            "symbol": "line-ew-open",
            "size": 13,
            "color": identity.colour,
            "line": {"width": 3, "color": identity.colour},
        },
        customdata=frame[["site", "layer"]].to_numpy(object),
        meta=meaning(x="site", columns=("site", "layer"), model=identity.model),
        hovertemplate=("<b>%{customdata[0]}</b><br>%{fullData.name} %{y:.4g}<extra></extra>"),
    )
