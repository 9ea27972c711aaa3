"""Figures of ``residual`` and ``branches``."""

from __future__ import annotations

import plotly.graph_objects as go

from normlens.figures.depth import Panel, depth_note, panels
from normlens.figures.frame import finish, tokens_note
from normlens.results import Result

POINTS = "before block; the last: after the last block"
REST, FIRST = (("group", "rest"),), (("group", "first"),)
OTHERS, STARTS = "every token but the first", "first token of each sequence"


def growth(result: Result) -> go.Figure:
    """Typical norm of the residual over that before block 0, by depth."""
    shown = (
        Panel(OTHERS, "growth", REST, "growth (×)", log=True),
        Panel(STARTS, "growth", FIRST, "growth (×)", log=True),
    )
    return finish(
        panels(result, "points", "point", shown, x_title=POINTS),
        result,
        "points",
        title="Growth of the residual: typical norm over that before block 0 (log)",
        notes=(
            tokens_note(result, "points", group="rest"),
            "95 % intervals, documents resampled",
            depth_note(result, "points", "point"),
        ),
        height=460,
    )


def first_token(result: Result) -> go.Figure:
    """The first token's norm over that of the typical other token, by depth."""
    shown = (Panel("", "ratio", (), "ratio (×)", log=True, level=1.0),)
    return finish(
        panels(result, "first_token", "point", shown, x_title=POINTS),
        result,
        "first_token",
        title="First token's norm over the typical other token's (log)",
        notes=(
            tokens_note(result, "first_token"),
            "95 % intervals; dotted: no difference",
            depth_note(result, "first_token", "point"),
        ),
        height=300,
    )


def turning(result: Result) -> go.Figure:
    """Angle between input and output of every block."""
    shown = (
        Panel(OTHERS, "angular_distance", REST, "angle / π"),
        Panel(STARTS, "angular_distance", FIRST, "angle / π"),
    )
    figure = panels(result, "steps", "layer", shown, x_title="block")
    figure.update_yaxes(rangemode="tozero")
    return finish(
        figure,
        result,
        "steps",
        title="How far every block turns the residual: arccos(cosine) / π",
        notes=(
            tokens_note(result, "steps", group="rest"),
            "0: same direction, 0.5: orthogonal; 95 % intervals",
            depth_note(result, "steps", "layer"),
        ),
        height=440,
    )


def branches(result: Result) -> go.Figure:
    """Norm of what attention and MLP add over that of the block's input."""
    shown = tuple(
        Panel(name, "ratio", (*REST, ("branch", branch)), "|added| / |input|", log=True)
        for name, branch in (("attention", "attention"), ("MLP", "mlp"))
    )
    return finish(
        panels(result, "branches", "layer", shown, x_title="block"),
        result,
        "branches",
        title="What a block adds, over the size of its input (log)",
        notes=(
            tokens_note(result, "branches", group="rest"),
            "first tokens left out; 95 % intervals",
            depth_note(result, "branches", "layer"),
        ),
        height=440,
    )


def branch_cosines(result: Result) -> go.Figure:
    """Cosine of what attention and MLP add with the block's input."""
    shown = tuple(
        Panel(name, "cosine", (*REST, ("branch", branch)), "cosine", level=0.0)
        for name, branch in (("attention", "attention"), ("MLP", "mlp"))
    )
    return finish(
        panels(result, "branches", "layer", shown, x_title="block"),
        result,
        "branches",
        title="Where a block's additions point: cosine with its input",
        notes=(
            tokens_note(result, "branches", group="rest"),
            "below 0 a branch takes away what is there; first tokens left out",
            depth_note(result, "branches", "layer"),
        ),
        height=440,
    )
