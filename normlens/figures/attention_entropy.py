"""Figures of ``attention-entropy``."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.attention_traces import (
    ceiling_line,
    depth_line,
    distinct_ceilings,
    head_points,
    rest_line,
)
from normlens.figures.frame import (
    finish,
    models_with_data,
    panel_titles,
    rows,
    stack_legend_once,
    tokens_note,
)
from normlens.figures.head_errors import integer_axis, side
from normlens.figures.head_maps import head_maps
from normlens.figures.tokens import escape
from normlens.results import Headline, Result

# Light to dark, from Cividis, so that the order is seen without colour too.
QUARTER_COLOURS = ("#ffe945", "#bcae6c", "#7d7c78", "#31446b")
MODES = {
    "normalised": "of the ceiling ln n",
    "reproduction": "of the model's own largest head entropy",
}


def entropy_map(result: Result) -> go.Figure:
    """Normalised entropy of every head."""
    return head_maps(
        result,
        "heads",
        "normalised",
        what="normalised entropy",
        title="Attention entropy of every head: mean of H\u00a0/\u00a0ln\u00a0n, in %",
        notes=(
            tokens_note(result, "heads", group="rest"),
            "0 %: one key takes all; 100 %: all visible keys alike; first queries left out",
        ),
        beside_name={m: _in_words(result, m, "normalised_entropy") for m in result.models},
    )


def quarters(result: Result) -> go.Figure:
    """Share of heads in each quarter of the entropy range, in both modes."""
    models = models_with_data(result, "bins")
    looks = theme.of_result(result)
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.2, subplot_titles=tuple(MODES)
    )
    names = list(dict.fromkeys(name for m in models for name in rows(result, "bins", m)["quarter"]))
    for panel, mode in enumerate(MODES, start=1):
        for k, name in enumerate(names):
            figure.add_trace(_bar(result, models, mode, name, QUARTER_COLOURS[k % 4]), panel, 1)
    stack_legend_once(figure)
    panel_titles(figure, list(MODES.values()))
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(models))),
        ticktext=[looks[model].label for model in models],
        showgrid=False,
        zeroline=False,
        range=[len(models) - 0.4, -0.6],
    )
    figure.update_xaxes(tickformat=".0%", range=[0, 1], showticklabels=True)
    figure.update_xaxes(title_text="share of heads", row=2)
    figure.update_layout(barmode="stack", bargap=0.35)
    return finish(
        figure,
        result,
        "bins",
        title="Heads by entropy: share in each quarter of the range",
        notes=(
            _heads_note(result),
            "overload: many heads in the top quarter; collapse: in the bottom one",
            "the lower bars repeat the published bins, which do not compare across models",
        ),
        height=2 * (70 + 34 * max(1, len(models))) + 70,
    )


def by_depth(result: Result) -> go.Figure:
    """Entropy by layer: every head and their mean; below, the part that is not the sink."""
    models = models_with_data(result, "heads")
    looks = theme.of_result(result)
    titles = ("normalised: heads and their mean", "in nats: whole, and without the sink's part")
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.12, subplot_titles=titles
    )
    ceilings: dict[str, pd.Series] = {}
    for index, model in enumerate(models):
        frame = rows(result, "heads", model)
        frame = frame[frame["group"] == "rest"]
        shift = 0.0 if len(models) == 1 else 0.3 * (index / (len(models) - 1) - 0.5)
        look = looks[model]
        figure.add_trace(head_points(frame, look, shift), 1, 1)
        means = frame.groupby("layer")[["normalised", "entropy", "rest_entropy", "ceiling"]].mean()
        figure.add_trace(depth_line(means["normalised"], look, look.label, "%{y:.1%}"), 1, 1)
        figure.add_trace(depth_line(means["entropy"], look, look.label, "%{y:.4g} nats"), 2, 1)
        figure.add_trace(rest_line(means["rest_entropy"], look), 2, 1)
        ceilings[model] = means["ceiling"]
    for index, (model, ceiling) in enumerate(distinct_ceilings(ceilings).items()):
        figure.add_trace(ceiling_line(ceiling, model, first=index == 0), 2, 1)
    stack_legend_once(figure)
    panel_titles(figure, titles)
    depth = max((side(rows(result, "heads", m)["layer"]) for m in models), default=1)
    figure.update_xaxes(**integer_axis(depth, ""))
    figure.update_xaxes(title_text="layer", row=2)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.02], row=1, title_text="H / ln n")
    figure.update_yaxes(rangemode="tozero", row=2, title_text="nats")
    return finish(
        figure,
        result,
        "heads",
        title="Attention entropy by depth",
        notes=(
            tokens_note(result, "heads", group="rest"),
            "open markers: (1 − a₀) H(others), without the choice between first token and others",
            "dotted: ceiling, the mean of ln n; ln(T!)/(T−1) for causal heads",
        ),
        height=520,
    )


def sinks(result: Result) -> go.Figure:
    """Share of sequences in which a head is a sink."""
    return head_maps(
        result,
        "sinks",
        "rate",
        what="sink in",
        title="Attention sinks: % of sequences with a sink on the first token",
        notes=(
            _sequences_note(result),
            "a sink: mean attention on the first token over the first queries is above the "
            "threshold; beside the name: share over heads and sequences",
        ),
        beside_name={m: _in_words(result, m, "sink_rate") for m in result.models},
    )


def _number(result: Result, model: str, name: str) -> Headline | None:
    return next((h for h in result.headline.get(model, ()) if h.name == name and h.n), None)


def _in_words(result: Result, model: str, name: str) -> str:
    number = _number(result, model, name)
    return "" if number is None else f": {number.value:.1%}"


def _heads_note(result: Result) -> str:
    counts = {int(rows(result, "bins", m)["n"].max()) for m in models_with_data(result, "bins")}
    return f"n = {' or '.join(f'{n:,}' for n in sorted(counts))} heads" if counts else ""


def _sequences_note(result: Result) -> str:
    found = [rows(result, "sinks", m) for m in models_with_data(result, "sinks")]
    if not found:
        return ""
    counts = sorted({int(frame["n"].max()) for frame in found})
    short = max(int(frame["left_out"].max()) for frame in found)
    left_out = f"; {short:,} shorter ones left out" if short else ""
    return f"n = {' or '.join(f'{n:,}' for n in counts)} sequences{left_out}"


def _bar(result: Result, models: list[str], mode: str, quarter: str, colour: str) -> go.Bar:
    found = [_of_quarter(rows(result, "bins", model), mode, quarter) for model in models]
    frame = pd.concat(found) if found else pd.DataFrame()
    columns = ["share_low", "share_high", "n"]
    place = {model: y for y, model in enumerate(models)}
    return go.Bar(
        orientation="h",
        x=frame["share"].to_numpy(float) if found else [],
        y=[place[model] for model in frame["model"]] if found else [],
        name=escape(quarter.replace("-", "–")),
        legendgroup=quarter,
        marker={"color": colour, "line": {"color": "#ffffff", "width": 0.5}},
        customdata=frame[columns].to_numpy(float) if found else None,
        hovertemplate=(
            "%{fullData.name}<br>%{x:.1%} of %{customdata[2]} heads "
            "[%{customdata[0]:.1%}, %{customdata[1]:.1%}]<extra></extra>"
        ),
    )


def _of_quarter(frame: pd.DataFrame, mode: str, quarter: str) -> pd.DataFrame:
    return frame[(frame["mode"] == mode) & (frame["quarter"] == quarter)]
