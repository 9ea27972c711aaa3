"""Figures of ``outliers``."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.declared import meaning, next_block
from normlens.figures.frame import (
    LOG_AXIS,
    finish,
    models_with_data,
    panel_titles,
    rows,
    stack_legend_once,
    tokens_note,
)
from normlens.figures.outliers_maps import dimension_map, feature_map, panels
from normlens.results import Result

_DEPTHS = "blocks before the point (depth)"
_PANELS = ("every token but the first", "first token of each sequence")
_GROUPS = ("rest", "first")


def magnitude(result: Result) -> go.Figure:
    """Largest and median magnitude of the residual stream by depth, first tokens apart."""
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.12, subplot_titles=_PANELS
    )
    looks = theme.of_result(result)
    for model in models_with_data(result, "layers"):
        for panel, group in enumerate(_GROUPS, start=1):
            frame = _group(result, "layers", model, group)
            for trace in _magnitudes(frame, looks[model]):
                figure.add_trace(trace, row=panel, col=1)
    stack_legend_once(figure)
    panel_titles(figure, _PANELS)
    figure.update_xaxes(zeroline=False)
    figure.update_xaxes(title_text=_DEPTHS, row=2, col=1)
    figure.update_yaxes(type="log", title_text="magnitude (residual units)", dtick=1)
    return finish(
        figure,
        result,
        "layers",
        title="Largest and median activation by depth (residual units, log)",
        notes=(
            tokens_note(result, "layers", group="rest"),
            "solid: largest magnitude; dotted, faint: median magnitude of a sequence",
            "star: massive activations there",
            _gauge(result),
        ),
        height=480,
    )


def kurtosis(result: Result) -> go.Figure:
    """Per-token and per-feature kurtosis of the residual stream by depth."""
    titles = ("per token, mean over tokens", "per feature")
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.12, subplot_titles=titles
    )
    looks = theme.of_result(result)
    rotated = False
    for model in models_with_data(result, "kurtosis"):
        frame = _group(result, "kurtosis", model, "rest")
        frame = frame[frame["point"].str.startswith("residual.")]
        for basis in ("native", "rotated"):
            part = frame[frame["basis"] == basis]
            if not len(part):
                continue
            rotated |= basis == "rotated"
            for panel, column in enumerate(("per_token", "per_feature"), start=1):
                figure.add_trace(_curve(part, column, looks[model], basis), row=panel, col=1)
    stack_legend_once(figure)
    panel_titles(figure, titles)
    for panel, gaussian in ((1, 3), (2, 1)):
        figure.add_hline(y=gaussian, line={"width": 1, "dash": "dot"}, row=panel, col=1)  # pyright: ignore[reportArgumentType] plotly takes numbers
    figure.update_xaxes(zeroline=False)
    figure.update_xaxes(title_text=_DEPTHS, row=2, col=1)
    figure.update_yaxes(title_text="kurtosis (1)", **LOG_AXIS)
    return finish(
        figure,
        result,
        "kurtosis",
        title="Kurtosis of the residual stream by depth (dimensionless, log)",
        notes=(
            tokens_note(result, "kurtosis", group="rest"),
            "first tokens left out; dotted: Gaussian (3 per token, 1 per feature)",
            "dashed, open: in a random orthonormal basis" if rotated else "",
        ),
        height=460,
    )


def dimensions(result: Result) -> go.Figure:
    """Share of the largest dimensions in the residual stream, by depth."""
    return panels(
        result,
        "profile",
        dimension_map,
        title="Share of the largest dimensions in the residual stream, by depth",
        colour="share of mean square",
        notes=(
            tokens_note(result, "profile", group="rest"),
            "first tokens left out; each model's own largest dimensions, largest first",
        ),
        axis=_DEPTHS,
    )


def features(result: Result) -> go.Figure:
    """Share of tokens in which a dimension reaches six RMS, by layer."""
    return panels(
        result,
        "feature_layers",
        feature_map,
        title="Share of tokens where a dimension reaches the threshold, in RMS of the token",
        colour="share of tokens",
        notes=(
            tokens_note(result, "feature_layers", criterion="relative"),
            "at the inputs of attention and MLP, larger of the two; first tokens left out",
        ),
        axis="layer",
    )


def first_token(result: Result) -> go.Figure:
    """Median norm of first tokens over that of all others, by depth."""
    figure = go.Figure()
    looks = theme.of_result(result)
    for model in models_with_data(result, "layers"):
        look = looks[model]
        rest, first = (_group(result, "layers", model, g) for g in _GROUPS)
        both = rest.merge(first, on="depth", suffixes=("_rest", "_first"))
        ratio = both["q50_norm_first"] / both["q50_norm_rest"]
        figure.add_trace(
            go.Scatter(
                x=both["depth"].to_numpy(int),
                y=ratio.to_numpy(float),
                mode="lines+markers",
                customdata=_with_block(both[["q50_norm_first", "q50_norm_rest", "depth"]]),
                meta=meaning(x="point", columns=("", "", "layer"), model=look.model),
                hovertemplate=(
                    "depth %{x} · %{fullData.name}<br>%{y:.4g} times the others<br>first "
                    "%{customdata[0]:.4g}, others %{customdata[1]:.4g}<extra></extra>"
                ),
                **_style(look, "native"),
            )
        )
    figure.add_hline(y=1, line={"width": 1, "dash": "dot"})
    figure.update_xaxes(title_text=_DEPTHS, zeroline=False)
    figure.update_yaxes(title_text="ratio (1)", **LOG_AXIS)
    return finish(
        figure,
        result,
        "layers",
        title="First token's norm over the others' (ratio of medians, log)",
        notes=(
            tokens_note(result, "layers", group="first").replace("tokens", "first tokens"),
            "L2 norm of the residual stream",
        ),
        height=300,
    )


def _group(result: Result, table: str, model: str, group: str) -> pd.DataFrame:
    frame = rows(result, table, model)
    return frame[frame["group"] == group].sort_values("depth", kind="stable")


def _gauge(result: Result) -> str:
    kinds = {str(result.provenance.get(model, {}).get("kind", "")) for model in result.models}
    if "live" not in kinds:
        return ""
    return "the residual scale of a model with live norms is arbitrary: compare distances"


def _with_block(frame: pd.DataFrame) -> NDArray[Any]:
    """Details for the pointer, the depth in the last column replaced by the block after it."""
    details = frame.astype(object).where(frame.notna(), None)
    details["depth"] = pd.Series(next_block(frame["depth"]), frame.index, dtype=object)
    return details.to_numpy(object)


def _magnitudes(frame: pd.DataFrame, look: theme.Identity) -> tuple[go.Scatter, go.Scatter]:
    details = frame[["largest", "dimension", "position", "ratio", "massive", "n", "depth"]]
    massive = frame["massive"].to_numpy(int) > 0
    style = _style(look, "native")
    style["marker"] |= {
        "symbol": ["star" if m else look.symbol for m in massive],
        "size": [12 if m else 6 for m in massive],
        # Plotly outlines and fades markers of several sizes.
        "line": {"width": 0},
        "opacity": 1,
    }
    largest = go.Scatter(
        x=frame["depth"].to_numpy(int),
        y=frame["largest"].abs().to_numpy(float),
        mode="lines+markers",
        customdata=_with_block(details),
        meta=meaning(
            x="point",
            columns=("", "dimension", "", "", "", "", "layer"),
            model=look.model,
        ),
        hovertemplate=(
            "depth %{x} · %{fullData.name}<br>largest %{customdata[0]:.4g} in dimension "
            "%{customdata[1]} at position %{customdata[2]}<br>%{customdata[3]:.4g} times the "
            "median of its sequence<br>%{customdata[4]} massive activations, "
            "n = %{customdata[5]:,}<extra></extra>"
        ),
        **style,
    )
    median = go.Scatter(
        x=frame["depth"].to_numpy(int),
        y=frame["median"].to_numpy(float),
        mode="lines",
        name=look.label,
        legendgroup=look.model,
        showlegend=False,
        line={"color": look.faded(0.7), "width": 1.5, "dash": "dot"},
        meta=meaning(model=look.model),
        hovertemplate="depth %{x} · %{fullData.name}<br>median %{y:.4g}<extra></extra>",
    )
    return largest, median


def _curve(frame: pd.DataFrame, column: str, look: theme.Identity, basis: str) -> go.Scatter:
    details = _with_block(frame[["point", "n", "depth"]])
    return go.Scatter(
        x=frame["depth"].to_numpy(int),
        y=frame[column].to_numpy(float),
        mode="lines+markers",
        customdata=details,
        meta=meaning(x="point", columns=("", "", "layer"), model=look.model),
        hovertemplate=(
            "%{customdata[0]} · %{fullData.name}<br>kurtosis %{y:.4g}<br>n = %{customdata[1]:,}"
            "<extra></extra>"
        ),
        **_style(look, basis),
    )


def _style(look: theme.Identity, basis: str) -> dict[str, Any]:
    turned = basis == "rotated"
    return {
        "name": f"{look.label} (rotated)" if turned else look.label,
        "legendgroup": f"{look.model} {basis}" if turned else look.model,
        "line": {
            "color": look.colour,
            "width": 2,
            "dash": theme.NOT_APPLIED_DASH if turned else look.dash,
        },
        "marker": {
            "color": look.colour,
            "symbol": f"{look.symbol}-open" if turned else look.symbol,
            "size": 6,
        },
    }
