"""Figures of ``prompt-attribution``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.declared import as_field, meaning
from normlens.figures.frame import finish, grid_shape, models_with_data, panel_titles, rows
from normlens.figures.limits import robust_limits
from normlens.figures.position_map import layer_map, position_map
from normlens.figures.tokens import escape, token_ticks
from normlens.results import Result

TOP_COMPONENTS = 15
BIASES = ("norm_bias", "unembed_bias")


def waterfall(result: Result) -> go.Figure:
    """Contributions at the last position, adding up to the model's own logit."""
    models = models_with_data(result, "waterfall")
    looks = theme.of_result(result)
    shape_rows, columns = grid_shape(len(models))
    titles = [looks[model].label for model in models]
    steps = {model: _steps(_last(result, "waterfall", model)) for model in models}
    tallest = max((len(step) for step in steps.values()), default=1) + 1
    panel_height = 19 * tallest + 44
    height = shape_rows * panel_height + 30
    figure = make_subplots(
        rows=shape_rows,
        cols=columns,
        subplot_titles=titles or None,
        horizontal_spacing=0.27,
        vertical_spacing=52 / height if shape_rows > 1 else 0,
    )
    for panel, model in enumerate(models):
        place: dict[str, Any] = {"row": panel // columns + 1, "col": panel % columns + 1}
        figure.add_trace(_bars(steps[model], looks[model]), **place)
        figure.add_trace(_model_logit(result, model, len(steps[model])), **place)
        names = [*steps[model]["name"], f"= {_target(result, model)}"]
        figure.update_yaxes(
            tickmode="array",
            tickvals=list(range(len(names))),
            tickfont={"size": 10},
            ticktext=[escape(name) for name in names],
            range=[len(names) - 0.3, -0.7],
            showgrid=False,
            zeroline=False,
            **place,
        )
    panel_titles(figure, titles)
    figure.update_xaxes(zeroline=True, zerolinewidth=2)
    figure.update_xaxes(title_text="logits", row=shape_rows)
    figure.update_layout(showlegend=False, waterfallgap=0.25)
    return finish(
        figure,
        result,
        "waterfall",
        title="What writes the prediction at the last position (logits)",
        notes=(
            "full colour adds to the logit, pale subtracts",
            "last row: the sum, with the token it is for",
            "diamond: the model's own logit; the sum must reach it",
        ),
        height=height,
    )


def by_position(result: Result) -> go.Figure:
    """Contributions of embeddings, attention and MLPs by layer, at every position."""
    models = models_with_data(result, "waterfall")
    looks = theme.of_result(result)
    maps = {model: layer_map(rows(result, "waterfall", model)) for model in models}
    depths = [len(frame) for frame in maps.values()] or [1]
    panel_height = 46 + 15 * max(depths)
    count = max(1, len(models))
    height = count * (panel_height + 62)
    labels = [looks[model].label for model in models]
    figure = make_subplots(
        rows=count,
        cols=1,
        subplot_titles=labels or None,
        vertical_spacing=(92 / height) if count > 1 else 0,
    )
    values = [v for frame in maps.values() for v in frame.to_numpy(float).ravel()]
    limits = robust_limits(values, signed=True)
    for row, model in enumerate(models, start=1):
        positions = rows(result, "positions", model).sort_values("position")
        for trace in position_map(maps[model], positions, model):
            figure.add_trace(trace, row=row, col=1)
        ticks = token_ticks([str(token) for token in positions["token"]])
        first = int(positions["position"].min()) if len(positions) else 0
        ticks = {**ticks.axis(), "tickvals": [value + first for value in ticks.values]}
        figure.update_xaxes(**ticks, tickangle=-60, showgrid=False, zeroline=False, row=row, col=1)
        figure.update_yaxes(
            tickmode="array",
            tickvals=list(range(len(maps[model]))),
            tickfont={"size": 10},
            ticktext=[escape(str(name)) for name in maps[model].index],
            autorange="reversed",
            showgrid=False,
            zeroline=False,
            row=row,
            col=1,
        )
    panel_titles(figure, labels)
    figure.update_layout(
        coloraxis={
            "colorscale": [list(stop) for stop in theme.DIVERGING],
            "cmin": limits.low,
            "cmax": limits.high,
            "cmid": 0,
            "colorbar": {"title": {"text": "logits", "side": "top"}},
        }
    )
    return finish(
        figure,
        result,
        "waterfall",
        title="What writes each position's prediction (logits)",
        notes=(
            "attn: all heads of the layer and its output bias",
            "each column attributes the token after it",
            limits.note,
        ),
        height=height,
    )


def _last(result: Result, table: str, model: str) -> pd.DataFrame:
    frame = rows(result, table, model)
    return frame[frame["position"] == frame["position"].max()]


def _target(result: Result, model: str) -> str:
    """The token whose logit the last position's contributions add up to."""
    targets = _last(result, "positions", model)["target"]
    if not len(targets):
        return "sum"
    return str(targets.iloc[0])[:12].replace(" ", "·").replace("\n", "⏎")


def _steps(frame: pd.DataFrame) -> pd.DataFrame:
    """The largest components by size, the rest in one row, then the bias terms."""
    bias = frame[frame["type"].isin(BIASES)]
    components = frame[~frame["type"].isin(BIASES)]
    order = components["dla"].abs().sort_values(ascending=False, kind="stable").index
    top, others = components.loc[order[:TOP_COMPONENTS]], components.loc[order[TOP_COMPONENTS:]]
    records: list[dict[str, Any]] = [_step(row) for _, row in top.iterrows()]
    if len(others):
        rest = {
            "name": f"{len(others)} others",
            "dla": others["dla"].sum(),
            "direct_effect": np.nan,
            "self_repair": np.nan,
            "layer": None,
            "head": None,
        }
        records.append(rest)
    records += [_step(row) for _, row in bias.iterrows()]
    return pd.DataFrame.from_records(
        records, columns=["name", "dla", "direct_effect", "self_repair", "layer", "head"]
    )


def _step(row: pd.Series) -> dict[str, Any]:
    return {
        "name": str(row["component"]),
        "dla": row["dla"],
        "direct_effect": row["direct_effect"],
        "self_repair": row["self_repair"],
        "layer": as_field("layer", row["layer"]),
        "head": as_field("head", row["head"]),
    }


def _bars(steps: pd.DataFrame, look: theme.Identity) -> go.Waterfall:
    total = float(steps["dla"].sum())
    details = steps.astype(object).where(steps.notna(), None).to_numpy(object)
    sum_row = np.array([["sum", total, np.nan, np.nan, None, None]], dtype=object)
    return go.Waterfall(
        orientation="h",
        x=[*steps["dla"].astype(float), total],
        y=list(range(len(steps) + 1)),
        measure=["relative"] * len(steps) + ["total"],
        increasing={"marker": {"color": look.colour}},
        decreasing={
            "marker": {"color": look.faded(0.3), "line": {"color": look.colour, "width": 1}}
        },
        totals={"marker": {"color": theme.NOT_APPLICABLE}},
        connector={"line": {"color": theme.NOT_APPLICABLE, "width": 1}},
        customdata=np.concatenate([details, sum_row]),
        meta=meaning(columns=("", "", "", "", "layer", "head"), model=look.model),
        hovertemplate=(
            "<b>%{customdata[0]}</b><br>DLA %{customdata[1]:+.4g} logits<br>direct effect "
            "%{customdata[2]:+.4g}<br>self-repair (DE − DLA) %{customdata[3]:+.4g}<extra></extra>"
        ),
    )


def _model_logit(result: Result, model: str, y: int) -> go.Scatter:
    last = _last(result, "positions", model)
    gap = (last["sum"] - last["logit"]).abs()
    return go.Scatter(
        x=last["logit"].to_numpy(float),
        y=[y] * len(last),
        mode="markers",
        marker={
            "symbol": "diamond",
            "size": 11,
            "color": theme.PAPER,
            "line": {"color": theme.INK, "width": 2},
        },
        customdata=np.stack([last["sum"].to_numpy(float), gap.to_numpy(float)], -1),
        hovertemplate=(
            "the model's logit %{x:.4g}<br>sum of contributions %{customdata[0]:.4g}"
            "<br>apart by %{customdata[1]:.2g}<extra></extra>"
        ),
    )
