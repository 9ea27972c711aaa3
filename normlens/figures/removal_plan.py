"""When a removal freezes which scale, how many stay live, and at what learning rate. No torch."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures.frame import heading
from normlens.figures.theme import QUIET
from normlens.figures.tokens import escape

PHASES: dict[str, tuple[str, str]] = {
    "embed": ("embeddings", "#999999"),
    "mlp": ("MLP", "#0072B2"),
    "qk": ("q, k", "#009E73"),
    "qk_norm": ("norms on q, k", "#56B4E9"),
    "v": ("v", "#D55E00"),
    "other": ("inside branches", "#F0E442"),
    "post": ("after branches", "#E69F00"),
    "final": ("final", "#CC79A7"),
}
"""Name and colour of each phase, in the order they follow each other by default."""

ROW_HEIGHTS = (0.56, 0.24, 0.2)


def removal_plan(freezes: pd.DataFrame, steps: pd.DataFrame, *, title: str, note: str) -> go.Figure:
    """Three panels over the steps: what is frozen, how many scales are live, learning rate.

    Args:
        freezes: one row per scale: ``step``, ``scale`` (its label), ``phase``, ``layer`` (NaN
            outside the blocks).
        steps: one row per step: ``step``, ``live_scales``, ``lr``.
        title: of the figure.
        note: under the title.
    """
    figure = make_subplots(
        rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=list(ROW_HEIGHTS)
    )
    deepest = freezes["layer"].max()
    outside = {"embed": -1.5, "final": (0 if pd.isna(deepest) else deepest) + 1.5}
    for phase, (name, colour) in PHASES.items():
        rows = freezes[freezes["phase"] == phase]
        if not len(rows):
            continue
        height = rows["layer"].fillna(outside.get(phase, -1.5))
        figure.add_scatter(
            x=rows["step"],
            y=height,
            mode="markers",
            marker={"color": colour, "size": 7},
            name=name,
            customdata=[escape(str(scale)) for scale in rows["scale"]],
            hovertemplate="step %{x}<br>%{customdata}<extra></extra>",
            row=1,
            col=1,
        )
    for row, column, name in ((2, "live_scales", "live scales"), (3, "lr", "learning rate")):
        figure.add_scatter(
            x=steps["step"],
            y=steps[column],
            mode="lines",
            line={"color": QUIET, "width": 1.6, "shape": "hv" if row == 2 else "linear"},
            name=name,
            showlegend=False,
            hovertemplate="step %{x}<br>%{y:.4g}<extra>" + name + "</extra>",
            row=row,
            col=1,
        )
        figure.update_yaxes(title_text=name, rangemode="tozero", row=row, col=1)
    figure.update_yaxes(title_text="block", row=1, col=1)
    figure.update_yaxes(tickformat="~g", row=3, col=1)
    figure.update_xaxes(title_text="step", row=3, col=1)
    figure = heading(figure, title=title, notes=[note], height=560)
    return figure.update_layout(margin={"b": 90})
