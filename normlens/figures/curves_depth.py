"""Figures of ``curves`` over depth: bend, spread of slopes, and errors of the fits."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.curves_panels import (
    FIT_COLOURS,
    FIT_DASHES,
    FIT_NAMES,
    FIT_SYMBOLS,
    FITS,
    TAIL,
    elements_note,
    rest_rows,
)
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
)
from normlens.figures.sites import SiteAxis, site_axis
from normlens.results import Result

_DETAILS = ["site", "n", "layer"]


def bend(result: Result) -> go.Figure:
    """How far the curve flattens in its tail, and how much the tokens' slopes vary."""
    titles = ("bend in the largest 0.1 % of |x|", "spread of the tokens' slopes, sd / mean")
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.13, subplot_titles=titles
    )
    models = models_with_data(result, "tails")
    axis = site_axis([rows(result, "fits", model) for model in models])
    looks = theme.of_result(result)
    for index, model in enumerate(models):
        tails = rest_rows(result, "tails", model)
        tails = axis.spaced(tails[tails["range"] == TAIL])
        figure.add_trace(_by_site(tails, "bend", looks[model], 0.0), row=1, col=1)
        slopes = rest_rows(result, "slopes", model)
        if len(slopes):
            shift = dodge(index, len(models), 0.3)
            trace = _by_site(axis.spaced(slopes), "spread", looks[model], shift)
            figure.add_trace(trace, row=2, col=1)
    figure.add_hline(y=1, line={"width": 1, "dash": "dot"}, row=_any(1), col=_any(1))
    stack_legend_once(figure)
    panel_titles(figure, titles)
    figure.update_xaxes(**axis.axis())
    figure.update_yaxes(title_text="ratio (1)", row=1, col=1)
    figure.update_yaxes(title_text="sd / mean", tickformat=".0%", rangemode="tozero", row=2, col=1)
    return finish(
        figure,
        result,
        "tails",
        title="How far the curve of each norm bends",
        notes=(
            elements_note(result),
            "1: as steep as for the smaller half of |x|; below 1: flatter",
            "first tokens left out; 95 % intervals resample documents",
            axis.note,
        ),
        height=460,
    )


def unexplained(result: Result) -> go.Figure:
    """Share of the variance of xhat that each fit leaves, by site, one panel per model."""
    return _errors(
        result,
        "fits",
        {**{fit: f"{fit}_r2" for fit in FITS}, "floor": "curve_r2"},
        title="Variance of a norm's output that a fit leaves: 1 − R² (log)",
        unit="1 − R²",
        notes=("over all elements, most of them small; first tokens left out",),
        complement=True,
    )


def tail_errors(result: Result) -> go.Figure:
    """RMS error of each fit in the largest 0.1 % of inputs, by site, one panel per model."""
    return _errors(
        result,
        "tails",
        {**{fit: f"{fit}_error" for fit in FITS}, "floor": "floor"},
        title="Error of the fits in the largest 0.1 % of |x| (RMS of x̂, log)",
        unit="RMS error",
        notes=("fits are over all elements; first tokens left out",),
        complement=False,
    )


def _errors(
    result: Result,
    table: str,
    columns: dict[str, str],
    *,
    title: str,
    unit: str,
    notes: tuple[str, ...],
    complement: bool,
) -> go.Figure:
    models = models_with_data(result, table)
    axis = site_axis([rows(result, "fits", model) for model in models])
    looks = theme.of_result(result)
    titles = [looks[model].label for model in models] or [""]
    panels = len(titles)
    figure = make_subplots(
        rows=panels,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.12 / max(1, panels - 1),
        subplot_titles=titles,
    )
    for row, model in enumerate(models, start=1):
        frame = rest_rows(result, table, model)
        frame = frame[frame["range"] == TAIL] if "range" in frame else frame
        if not len(frame):
            continue
        for name, column in columns.items():
            values = frame.assign(**{column: 1 - frame[column]}) if complement else frame
            figure.add_trace(_error_line(axis, values, name, column, model), row=row, col=1)
    stack_legend_once(figure)
    panel_titles(figure, titles)
    figure.update_xaxes(**axis.axis())
    figure.update_yaxes(title_text=unit, **LOG_AXIS)
    return finish(
        figure,
        result,
        table,
        title=title,
        notes=(
            elements_note(result),
            "grey area: what no function of x alone can avoid",
            "a fit of exactly 0 error has no place on the axis",
            *notes,
            axis.note,
        ),
        height=200 * panels + 60,
    )


def _error_line(
    axis: SiteAxis, frame: pd.DataFrame, name: str, column: str, model: str
) -> go.Scatter:
    frame = axis.spaced(frame)
    value = frame[column].astype(float)
    # Rounding leaves an exact fit a little above or below 0.
    value = value.where(value > 1e-9)
    shared: dict[str, Any] = {
        "x": frame.index.to_numpy(),
        "y": value.to_numpy(),
        "customdata": frame[_DETAILS].to_numpy(object),
        "meta": meaning(x="site", columns=_DETAILS, model=model),
        "legendgroup": name,
        "hovertemplate": (
            "<b>%{customdata[0]}</b> · %{fullData.name}<br>%{y:.4g}"
            "<br>n = %{customdata[1]:,} elements<extra></extra>"
        ),
    }
    if name == "floor":
        line = {"color": theme.NOT_APPLICABLE, "width": 5}
        return go.Scatter(name="unavoidable", mode="lines", opacity=0.45, line=line, **shared)
    return go.Scatter(
        name=FIT_NAMES[name],
        mode="lines+markers",
        line={"color": FIT_COLOURS[name], "dash": FIT_DASHES[name], "width": 1.8},
        marker={"symbol": FIT_SYMBOLS[name], "size": 7, "line": {"width": 1.5}},
        **shared,
    )


def _by_site(frame: pd.DataFrame, column: str, look: theme.Identity, shift: float) -> go.Scatter:
    value = frame[column].astype(float)
    low, high = f"{column}_low", f"{column}_high"
    bars = None
    if low in frame:
        bars = asymmetric_error(value, frame[low], frame[high], look.colour)
    return go.Scatter(
        x=frame.index.to_numpy() + shift,
        y=value.to_numpy(),
        error_y=bars,
        name=look.label,
        legendgroup=look.model,
        mode="lines+markers",
        line={"color": look.colour, "dash": look.dash, "width": 1.8},
        marker={"symbol": look.symbol, "size": 6, "color": look.colour},
        customdata=frame[_DETAILS].to_numpy(object),
        meta=meaning(x="site", columns=_DETAILS, model=look.model),
        hovertemplate=(
            "<b>%{customdata[0]}</b> · %{fullData.name}<br>%{y:.4g}"
            "<br>n = %{customdata[1]:,}<extra></extra>"
        ),
    )


def _any(value: Any) -> Any:
    # plotly declares row and col of add_hline as str alone.
    return value
