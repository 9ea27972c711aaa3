"""Panels of one input-output curve: its mean, its spread and its fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from normlens.figures import theme
from normlens.figures.declared import meaning
from normlens.figures.frame import models_with_data, rows
from normlens.figures.tokens import escape
from normlens.results import Result

ENOUGH = 10
"""Elements behind a point of a curve that is drawn."""
TAIL = "99.9–100 %"
FITS = ("tanh", "eln", "line")
FIT_NAMES = {"tanh": "s tanh(αx)", "eln": "s x/√(β+x²)", "line": "straight line"}
FIT_COLOURS = {"tanh": "#009E73", "eln": "#CC79A7", "line": "#8a8f98"}
FIT_DASHES = {"tanh": "solid", "eln": "dash", "line": "dot"}
FIT_SYMBOLS = {"tanh": "circle", "eln": "diamond", "line": "x-thin-open"}


@dataclass(frozen=True)
class Site:
    """What is drawn of one norm of one model, tokens after the first.

    Attributes:
        label: of the site.
        curve: rows of ``curves`` with enough elements, by x.
        fits: the row of ``fits``.
        tail: the smallest ``|x|`` of the largest 0.1 %, NaN where there is none.
    """

    label: str
    curve: pd.DataFrame
    fits: pd.Series
    tail: float


def sites_of(result: Result, model: str) -> list[Site]:
    """The norms of a model that have a curve, in order of execution."""
    fits, tails, curves = (rest_rows(result, table, model) for table in ("fits", "tails", "curves"))
    starts = tails[tails["range"] == TAIL].set_index("site")["from_x"]
    found: list[Site] = []
    for _, row in fits.sort_values("order").iterrows():
        label = str(row["site"])
        curve = curves[(curves["site"] == label) & (curves["n"] >= ENOUGH)].sort_values("x")
        if len(curve):
            found.append(Site(label, curve, row, float(starts.get(label, np.nan))))
    return found


def spread_out(sites: Sequence[Site], count: int) -> list[Site]:
    """At most ``count`` of them, evenly over depth, first and last included."""
    chosen = np.linspace(0, len(sites) - 1, min(count, len(sites))).round().astype(int)
    return [sites[i] for i in chosen]


def fitted(fits: pd.Series, fit: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """A fit at x."""
    match fit:
        case "tanh":
            return float(fits["tanh_s"]) * np.tanh(float(fits["tanh_alpha"]) * x)
        case "eln":
            return float(fits["eln_s"]) * x / np.sqrt(float(fits["eln_beta"]) + x**2)
        case _:
            return float(fits["line_slope"]) * x + float(fits["line_intercept"])


def mean_and_spread(site: Site, look: theme.Identity, unit: float) -> Iterator[go.Scatter]:
    """The ribbon of one standard deviation and the mean, x in multiples of ``unit``."""
    x = site.curve["x"].to_numpy(float) / unit
    mean, sd = (site.curve[name].to_numpy(float) for name in ("xhat", "sd"))
    yield go.Scatter(
        x=[*x, *x[::-1]],
        y=[*(mean + sd), *(mean - sd)[::-1]],
        fill="toself",
        fillcolor=look.faded(0.18),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
    )
    details = site.curve[["x", "sd", "n"]].to_numpy(float)
    yield go.Scatter(
        x=x,
        y=mean,
        name=look.label,
        legendgroup=look.model,
        mode="lines+markers",
        line={"color": look.colour, "dash": look.dash, "width": 1.6},
        marker={"symbol": look.symbol, "size": 4, "color": look.colour},
        customdata=details,
        meta=meaning(
            constant={"site": site.label}
            | ({} if pd.isna(site.fits["layer"]) else {"layer": int(site.fits["layer"])}),
            model=look.model,
            mark="panel",
        ),
        hovertemplate=(
            f"<b>{escape(site.label)}</b> · %{{fullData.name}}<br>x %{{customdata[0]:.4g}}, "
            "x̂ %{y:.4g} ± %{customdata[1]:.3g}<br>n = %{customdata[2]:,.0f} elements<extra></extra>"
        ),
    )


def fit_lines(site: Site) -> Iterator[go.Scatter]:
    """The three fits over the range of the curve."""
    ends = site.curve["x"].iloc[[0, -1]].to_numpy(float)
    x = np.linspace(ends[0], ends[1], 161)
    for fit in FITS:
        yield go.Scatter(
            x=x,
            y=fitted(site.fits, fit, x),
            name=FIT_NAMES[fit],
            legendgroup=fit,
            mode="lines",
            line={"color": FIT_COLOURS[fit], "dash": FIT_DASHES[fit], "width": 2},
            hovertemplate=f"{FIT_NAMES[fit]}: %{{y:.4g}} at %{{x:.4g}}<extra></extra>",
        )


def rest_rows(result: Result, table: str, model: str) -> pd.DataFrame:
    """The rows of tokens after the first, in order of execution."""
    frame = rows(result, table, model)
    return frame[frame["group"] == "rest"].sort_values("order", kind="stable")


def elements_note(result: Result) -> str:
    """``n = 1,548,288 elements``, or the range over models; empty without data."""
    counts = [
        int(frame["n"].max())
        for model in models_with_data(result, "fits")
        if len(frame := rest_rows(result, "fits", model))
    ]
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return f"n = {low:,} elements" if low == high else f"n = {low:,}–{high:,} elements per model"
