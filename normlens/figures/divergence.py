"""Figures of ``divergence``: every model against the one reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.divergence_classes import PARTITIONS, class_panels, panels_height
from normlens.figures.frame import (
    asymmetric_error,
    dodge,
    finish,
    models_with_data,
    panel_titles,
    rows,
    tokens_note,
)
from normlens.figures.limits import SymmetricLog
from normlens.results import Result

_QUANTITIES = {
    "jsd": "JSD (nats), at most 0.693",
    "kl_model_reference": "KL(model ‖ reference) (nats)",
    "kl_reference_model": "KL(reference ‖ model) (nats)",
    "agreement": "same most probable token (share)",
    "delta_loss": "loss minus the reference's (nats/token)",
}
_LOSS_AXIS = SymmetricLog(linear=1e-2)
_ROW = 26


def summary(result: Result) -> go.Figure:
    """Divergences, agreement and loss difference of every model, with intervals."""
    titles = tuple(_QUANTITIES.values())
    figure = make_subplots(rows=5, cols=1, vertical_spacing=0.09, subplot_titles=titles)
    looks = theme.of_result(result)
    models = models_with_data(result, "summary")
    for y, model in enumerate(models):
        frame = rows(result, "summary", model)
        frame = frame[frame["group"] == "all"]
        for row, quantity in enumerate(_QUANTITIES, start=1):
            figure.add_trace(_dot(frame, quantity, y, looks[model]), row=row, col=1)
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(models))),
        ticktext=[looks[model].label for model in models],
        range=[len(models) - 0.4, -0.6],
        showgrid=False,
        zeroline=False,
    )
    for row in (1, 2, 3):
        figure.update_xaxes(rangemode="tozero", row=row, col=1)
    figure.update_xaxes(tickformat=".1%", row=4, col=1)
    figure.update_xaxes(zeroline=True, zerolinewidth=2, row=5, col=1)
    panel_titles(figure, titles)
    figure.update_layout(showlegend=False)
    return finish(
        figure,
        result,
        "summary",
        title=f"How far predictions are from those of {_reference(result)}",
        notes=(tokens_note(result, "summary", group="all"), "95 % paired intervals"),
        height=5 * (66 + _ROW * max(1, len(models))),
    )


def by_class(result: Result) -> go.Figure:
    """Jensen-Shannon divergence by class of the predicted token."""
    figure = class_panels(result, "jsd", None)
    figure.update_xaxes(rangemode="tozero")
    figure.update_xaxes(title_text="JSD (nats)", row=len(PARTITIONS), col=1)
    return finish(
        figure,
        result,
        "classes",
        title=f"Divergence from {_reference(result)} by class of the next token (JSD, nats)",
        notes=(tokens_note(result, "summary", group="all"), "95 % intervals"),
        height=panels_height(result),
    )


def loss_by_class(result: Result) -> go.Figure:
    """Loss difference by class of the predicted token."""
    figure = class_panels(result, "delta_loss", _LOSS_AXIS)
    frames = [rows(result, "classes", m) for m in models_with_data(result, "classes")]
    shown = [v for f in frames for c in ("", "_low", "_high") for v in f[f"delta_loss{c}"]]
    figure.update_xaxes(**_decades(shown), zeroline=True, zerolinewidth=2)
    figure.update_xaxes(title_text="nats/token", row=len(PARTITIONS), col=1)
    return finish(
        figure,
        result,
        "classes",
        title=f"Loss minus that of {_reference(result)} by class of the next token (nats/token)",
        notes=(
            tokens_note(result, "summary", group="all"),
            "95 % paired intervals; logarithmic in both directions, linear below 0.01",
        ),
        height=panels_height(result),
    )


def by_position(result: Result) -> go.Figure:
    """Jensen-Shannon divergence by the position that predicts."""
    figure = go.Figure()
    looks = theme.of_result(result)
    models = models_with_data(result, "positions")
    labels: dict[int, str] = {}
    for index, model in enumerate(models):
        frame = rows(result, "positions", model).sort_values("low")
        look = looks[model]
        # The range that starts at 2**k stands at k + 1, position 0 at 0.
        low = frame["low"].to_numpy(int)
        x = np.log2(low.clip(min=1)).round() + (low > 0)
        for place, start, end in zip(x, low, frame["high"], strict=True):
            labels.setdefault(int(place), str(start) if start == end else f"{start}–{end}")
        ends = frame["jsd_low"], frame["jsd_high"]
        figure.add_trace(
            go.Scatter(
                x=x + dodge(index, len(models), 0.2),
                y=frame["jsd"].to_numpy(float),
                name=look.label,
                mode="lines+markers",
                line={"color": look.colour, "dash": look.dash, "width": 1.8},
                marker={"symbol": look.symbol, "size": 7},
                error_y=asymmetric_error(frame["jsd"], *ends, look.colour),
                customdata=frame[["low", "high", "delta_loss", "n"]].to_numpy(object),
                hovertemplate=(
                    "<b>positions %{customdata[0]}–%{customdata[1]}</b> · %{fullData.name}"
                    "<br>JSD %{y:.4g} nats<br>Δloss %{customdata[2]:+.4g} nats/token"
                    "<br>n = %{customdata[3]:,}<extra></extra>"
                ),
            )
        )
    figure.update_xaxes(
        tickmode="array",
        tickvals=list(labels),
        ticktext=list(labels.values()),
        title_text="position that predicts",
    )
    figure.update_yaxes(rangemode="tozero", title_text="JSD (nats)")
    return finish(
        figure,
        result,
        "positions",
        title=f"Divergence from {_reference(result)} by position (JSD, nats)",
        notes=(tokens_note(result, "summary", group="all"), "95 % intervals"),
        height=340,
    )


def _decades(shown: list[float]) -> dict[str, Any]:
    """The loss axis with its powers of ten alone: two ticks a decade do not fit in 390 px."""
    axis = _LOSS_AXIS.axis(shown)
    ticks = zip(axis["tickvals"], axis["ticktext"], strict=True)
    kept = [(value, text) for value, text in ticks if "3" not in text]
    values, texts = [value for value, _ in kept], [text for _, text in kept]
    return axis | {"tickvals": values, "ticktext": texts, "tickangle": 0}


def _reference(result: Result) -> str:
    """Its name, or the word where models were set against different ones."""
    names = {str(origin.get("reference")) for origin in result.provenance.values()}
    return names.pop() if len(names) == 1 else "the reference"


def _dot(frame: pd.DataFrame, column: str, y: int, look: theme.Identity) -> go.Scatter:
    value = frame[column]
    ends = frame[f"{column}_low"], frame[f"{column}_high"]
    details = frame[[column, f"{column}_low", f"{column}_high", "n"]]
    return go.Scatter(
        x=value.to_numpy(float),
        y=[y] * len(frame),
        name=look.label,
        mode="markers",
        marker={"symbol": look.symbol, "size": 10, "color": look.colour},
        error_x=asymmetric_error(value, *ends, look.colour),
        customdata=details.to_numpy(object),
        hovertemplate=(
            "<b>%{fullData.name}</b><br>%{customdata[0]:.4g} [%{customdata[1]:.4g}, "
            "%{customdata[2]:.4g}]<br>n = %{customdata[3]:,}<extra></extra>"
        ),
    )
