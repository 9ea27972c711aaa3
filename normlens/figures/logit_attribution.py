"""Figures of ``logit-attribution``."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.declared import meaning
from normlens.figures.frame import (
    asymmetric_error,
    finish,
    grid_shape,
    models_with_data,
    panel_titles,
    rows,
    tokens_note,
)
from normlens.figures.head_errors import head_map, integer_axis, mean, side, strip
from normlens.figures.limits import robust_limits
from normlens.figures.tokens import escape
from normlens.results import Result

TOP_COMPONENTS = 10
# Tick labels, the axis title and the next panel's title, px.
_BETWEEN_MAPS = 62


def nmae_heads(result: Result) -> go.Figure:
    """Error of every head, layer by head and one map per model on one colour axis."""
    models = models_with_data(result, "components")
    looks = theme.of_result(result)
    heads = {model: _heads(result, model) for model in models}
    shape_rows, columns = grid_shape(len(models))
    layers = [side(frame["layer"]) for frame in heads.values()] or [1]
    cell = float(np.clip(320 / max(layers), 13, 26))
    map_height, strip_height = max(layers) * cell, 20 + 26 * max(1, len(models))
    labels = [looks[model].label for model in models]
    spare = shape_rows * columns - len(models)
    titles = (*labels, *[""] * spare, "all heads; diamond: mean and 95 % interval")
    height = shape_rows * (map_height + _BETWEEN_MAPS) + strip_height + 60
    figure = make_subplots(
        rows=shape_rows + 1,
        cols=columns,
        specs=[[{}] * columns] * shape_rows + [[{"colspan": columns}, *[None] * (columns - 1)]],
        row_heights=[map_height] * shape_rows + [strip_height],
        vertical_spacing=_BETWEEN_MAPS / (height - 40),
        horizontal_spacing=0.09,
        subplot_titles=titles,
    )
    for panel, model in enumerate(models):
        place: dict[str, Any] = {"row": panel // columns + 1, "col": panel % columns + 1}
        for trace in head_map(heads[model], model):
            figure.add_trace(trace, **place)
        sides = side(heads[model]["layer"]), side(heads[model]["head"])
        figure.update_yaxes(**integer_axis(sides[0], "layer" if place["col"] == 1 else ""), **place)
        lowest = place["row"] == shape_rows
        figure.update_xaxes(**integer_axis(sides[1], "head" if lowest else ""), **place)
        place: dict[str, Any] = {"row": shape_rows + 1, "col": 1}
        figure.add_trace(strip(heads[model], panel, looks[model]), **place)
        figure.add_trace(mean(result, panel, looks[model]), **place)
    below: dict[str, Any] = {"row": shape_rows + 1, "col": 1}
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(models))),
        ticktext=labels,
        showgrid=False,
        zeroline=False,
        range=[len(models) - 0.4, -0.6],
        **below,
    )
    figure.update_xaxes(tickformat=".0%", rangemode="tozero", title_text="NMAE", **below)
    errors = [v for frame in heads.values() for v in frame["nmae"]]
    limits = robust_limits(errors, signed=False)
    panel_titles(figure, [t for t in titles if t])
    figure.update_layout(
        showlegend=False,
        coloraxis={
            "colorscale": theme.SEQUENTIAL,
            "cmin": limits.low,
            "cmax": limits.high,
            "colorbar": {
                "tickformat": ".0%",
                "title": {"text": ""},
                "y": 1,
                "yanchor": "top",
                "len": shape_rows * (map_height + _BETWEEN_MAPS) / height,
            },
        },
    )
    return finish(
        figure,
        result,
        "components",
        title="Error of direct logit attribution by head: mean |DLA − DE| / mean |DE|",
        notes=(tokens_note(result, "components"), "numbers in cells are percent", limits.note),
        height=round(height),
    )


def dla_against_effect(result: Result) -> go.Figure:
    """Mean attribution beside the exact direct effect, for the components that write most."""
    models = models_with_data(result, "components")
    looks = theme.of_result(result)
    shape_rows, columns = grid_shape(len(models))
    labels = [looks[model].label for model in models]
    panel_height = 22 * TOP_COMPONENTS + 50
    height = shape_rows * panel_height + 40
    figure = make_subplots(
        rows=shape_rows,
        cols=columns,
        subplot_titles=labels or None,
        vertical_spacing=50 / height if shape_rows > 1 else 0,
        horizontal_spacing=0.16,
        shared_xaxes=cast(Any, "all"),
    )
    for panel, model in enumerate(models):
        place: dict[str, Any] = {"row": panel // columns + 1, "col": panel % columns + 1}
        frame = rows(result, "components", model)
        frame = frame.nlargest(TOP_COMPONENTS, "mean_abs_effect")
        look = looks[model]
        for name, column, fill in (
            ("DLA", "dla", look.colour),
            ("direct effect", "direct_effect", look.faded(0.25)),
        ):
            figure.add_trace(_effect_bars(frame, name, column, fill, look, panel), **place)
        figure.update_yaxes(
            tickmode="array",
            tickvals=list(range(len(frame))),
            tickfont={"size": 10},
            ticktext=[escape(c) for c in frame["component"]],
            showgrid=False,
            range=[len(frame) - 0.4, -0.6],
            **place,
        )
    panel_titles(figure, labels)
    figure.update_xaxes(showticklabels=True, zeroline=True, zerolinewidth=2)
    figure.update_xaxes(title_text="logits", row=shape_rows)
    figure.update_layout(barmode="group", bargap=0.3, bargroupgap=0.05, showlegend=False)
    return finish(
        figure,
        result,
        "components",
        title="Attributed and exact direct effect on the target's logit (logits)",
        notes=(
            tokens_note(result, "components"),
            "filled: DLA; outlined: exact direct effect; means over tokens",
            f"the {TOP_COMPONENTS} components with the largest mean |effect|",
        ),
        height=height,
    )


def groups(result: Result) -> go.Figure:
    """Mean error by type of component with its 95 % interval and its range."""
    models = models_with_data(result, "groups")
    looks = theme.of_result(result)
    order = ("head", "mlp", "attn_bias", "embedding")
    found = {str(t) for model in models for t in rows(result, "groups", model)["type"]}
    types = [t for t in order if t in found] + sorted(found - set(order))
    figure = go.Figure()
    for model in models:
        frame = rows(result, "groups", model)
        look = looks[model]
        nmae = frame["nmae"]
        columns = [
            "nmae_low",
            "nmae_high",
            "nmae_pooled",
            "nmae_min",
            "nmae_max",
            "components",
            "n",
        ]
        figure.add_trace(
            go.Bar(
                x=[types.index(t) for t in frame["type"]],
                y=nmae.to_numpy(float),
                name=look.label,
                marker={"color": look.colour},
                error_y=asymmetric_error(
                    nmae, frame["nmae_low"], frame["nmae_high"], theme.NOT_APPLICABLE
                ),
                customdata=frame[columns].to_numpy(float),
                hovertemplate=(
                    "%{fullData.name}<br>NMAE %{y:.4g} [%{customdata[0]:.4g}, "
                    "%{customdata[1]:.4g}]<br>pooled %{customdata[2]:.4g}<br>components "
                    "%{customdata[3]:.4g} to %{customdata[4]:.4g} (%{customdata[5]} of them)"
                    "<br>n = %{customdata[6]:,}<extra></extra>"
                ),
            )
        )
    figure.update_xaxes(
        tickmode="array",
        tickvals=list(range(len(types))),
        ticktext=[escape(t.replace("_", " ")) for t in types],
        zeroline=False,
    )
    figure.update_yaxes(tickformat=".0%", rangemode="tozero", title_text="mean NMAE")
    figure.update_layout(barmode="group", bargap=0.3, showlegend=True)
    return finish(
        figure,
        result,
        "groups",
        title="Error of direct logit attribution by component type",
        notes=(tokens_note(result, "groups"), "mean over components; 95 % intervals"),
        height=300,
    )


def _heads(result: Result, model: str) -> pd.DataFrame:
    frame = rows(result, "components", model)
    return frame[frame["type"] == "head"]


def _effect_bars(
    frame: pd.DataFrame, name: str, column: str, fill: str, look: theme.Identity, panel: int
) -> go.Bar:
    return go.Bar(
        orientation="h",
        x=frame[column].to_numpy(float),
        y=list(range(len(frame))),
        name=name,
        offsetgroup=f"{panel} {column}",
        marker={"color": fill, "line": {"color": look.colour, "width": 1}},
        customdata=frame[["component", "self_repair", "nmae", "layer", "head"]].to_numpy(object),
        meta=meaning(columns=("", "", "", "layer", "head"), model=look.model),
        hovertemplate=(
            f"<b>%{{customdata[0]}}</b><br>{name} %{{x:.4g}} logits<br>self-repair (DE − DLA) "
            "%{customdata[1]:.4g}<br>NMAE %{customdata[2]:.4g}<extra></extra>"
        ),
    )
