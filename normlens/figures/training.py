"""Training runs side by side: loss per step, held-out loss, learning rate. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.frame import heading, panel_titles, stack_legend_once

MOST_POINTS = 2000
"""Points of one line; longer runs are averaged over equal numbers of steps."""
_NO_RUN = "No run has written a step yet."


def training_curves(runs: Mapping[str, pd.DataFrame]) -> go.Figure:
    """Loss of every run, on the training text and on held-out text, and what steers it.

    Args:
        runs: name -> its log: ``step``, ``loss`` (nats/token), ``lr``, and optionally
            ``auxiliary``, ``held_out_loss`` and ``live_scales``; empty cells where a step has no
            such number. An unfinished log, and one without a row, are welcome.
    """
    panels = _panels(runs)
    titles = [title for title, _, _ in panels]
    figure = make_subplots(
        rows=len(panels),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.07,
        row_heights=[3.0 if column == "loss" else 1.2 for _, column, _ in panels],
        subplot_titles=titles,
    )
    looks = theme.identities(list(runs), {name: _kind(log) for name, log in runs.items()})
    for name, log in runs.items():
        for row, (_, column, unit) in enumerate(panels, start=1):
            if len(log) and (column == "loss" or _varies({name: log}, column)):
                figure.add_trace(_line(log, column, unit, looks[name]), row=row, col=1)
        held_out = _evaluations(log)
        if len(held_out):
            figure.add_trace(_held_out(held_out, looks[name]), row=1, col=1)
    stack_legend_once(figure)
    panel_titles(figure, titles)
    for row, (_, column, unit) in enumerate(panels, start=1):
        figure.update_yaxes(
            title_text=unit, rangemode="normal" if column == "loss" else "tozero", row=row, col=1
        )
        if column == "lr":
            figure.update_yaxes(tickformat="~g", row=row, col=1)
    figure.update_xaxes(title_text="step", row=len(panels), col=1)
    steps = sum(len(log) for log in runs.values())
    notes = [
        "markers: loss on held-out text" if _any(runs, "held_out_loss") else "",
        f"lines: mean over equal stretches of steps, at most {MOST_POINTS:,} points"
        if any(len(log) > MOST_POINTS for log in runs.values())
        else "",
        "" if steps else _NO_RUN,
    ]
    return heading(
        figure, title="Training: loss by step (nats/token)", notes=notes,
        height=300 + 110 * (len(panels) - 1),
    )  # fmt: skip


def _panels(runs: Mapping[str, pd.DataFrame]) -> list[tuple[str, str, str]]:
    """Title, column and unit of every panel that some run has numbers for."""
    optional = (
        ("auxiliary loss", "auxiliary", "loss"),
        ("live scales", "live_scales", "scales"),
        ("learning rate", "lr", "rate"),
    )
    shown = [panel for panel in optional if _varies(runs, panel[1])]
    return [("loss", "loss", "nats/token"), *shown]


def _any(runs: Mapping[str, pd.DataFrame], column: str) -> bool:
    return any(column in log and log[column].notna().any() for log in runs.values())


def _varies(runs: Mapping[str, pd.DataFrame], column: str) -> bool:
    """Whether any run has a number there other than the 0 of runs without such a thing."""
    return any(column in log and (log[column].fillna(0) != 0).any() for log in runs.values())


def _line(log: pd.DataFrame, column: str, unit: str, look: theme.Identity) -> go.Scatter:
    steps, values = _thinned(log["step"].to_numpy(float), log[column].to_numpy(float))
    return go.Scatter(
        x=steps,
        y=values,
        name=look.label,
        legendgroup=look.model,
        mode="lines",
        line={
            "color": look.colour,
            "dash": look.dash,
            "width": 1.6,
            "shape": "hv" if column == "live_scales" else "linear",
        },
        hovertemplate=f"step %{{x:,.0f}} · %{{fullData.name}}<br>%{{y:.4g}} {unit}<extra></extra>",
    )


def _kind(log: pd.DataFrame) -> dict[str, str]:
    """A run that freezes scales has the colour of scale-free models."""
    removes = "live_scales" in log and (log["live_scales"].fillna(0) > 0).any()
    return {"kind": "scale_free" if removes else "live"}


def _evaluations(log: pd.DataFrame) -> pd.DataFrame:
    """The steps with a new held-out loss; a log repeats the last one until the next."""
    if "held_out_loss" not in log:
        return log.iloc[:0]
    known = log[log["held_out_loss"].notna()]
    return known[known["held_out_loss"].diff() != 0]


def _held_out(evaluations: pd.DataFrame, look: theme.Identity) -> go.Scatter:
    style: dict[str, Any] = {"symbol": look.symbol, "size": 8, "color": look.colour}
    return go.Scatter(
        x=evaluations["step"].to_numpy(float),
        y=evaluations["held_out_loss"].to_numpy(float),
        name=look.label,
        legendgroup=look.model,
        showlegend=False,
        mode="lines+markers",
        line={"color": look.colour, "dash": look.dash, "width": 1},
        marker={**style, "line": {"color": theme.PAPER, "width": 1}},
        hovertemplate=(
            "step %{x:,.0f} · %{fullData.name}<br>held out %{y:.4g} nats/token<extra></extra>"
        ),
    )


def _thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over stretches of equal length, each at its last step."""
    if len(steps) <= MOST_POINTS:
        return steps, values
    parts = np.array_split(np.arange(len(steps)), MOST_POINTS)
    return (
        np.array([steps[part[-1]] for part in parts]),
        np.array([values[part].mean() for part in parts]),
    )
