"""How figures look: one template, and for each model a colour, dash and marker of its own.

Colours are those of Okabe & Ito (2008), distinguishable with colour-vision deficiencies.
The first model with live scales is always ``#0072B2`` and the first scale-free one always
``#D55E00``, in every figure of every report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from normlens.figures.tokens import shorten
from normlens.results import Result

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
NOT_APPLICABLE = "#9a9a9a"
SEQUENTIAL = "Cividis"
DIVERGING = ((0.0, "#2166ac"), (0.5, "#f7f7f7"), (1.0, "#b2182b"))
NOT_APPLIED_DASH = "dash"
INK, QUIET, PAPER = "#1f2328", "#5b6168", "#ffffff"
"""Of text and outlines, of secondary text and lines, and of the page: use these, and no other
colour, for what has to change with the page."""
DARK = {INK: "#e8e6e3", QUIET: "#a8a6a2", PAPER: "#16181c"}
"""What these become on a dark page."""

_BLUE, _SKY, _GREEN, _PURPLE = "#0072B2", "#56B4E9", "#009E73", "#CC79A7"
_VERMILION, _ORANGE, _YELLOW = "#D55E00", "#E69F00", "#F0E442"
_PREFERRED = {
    "live": (_BLUE, _SKY, _GREEN, _PURPLE, _YELLOW, _ORANGE),
    "scale_free": (_VERMILION, _ORANGE, _PURPLE, _YELLOW, _GREEN, _SKY),
    "mixed": (_PURPLE, _ORANGE, _GREEN, _YELLOW, _SKY),
    "": (_BLUE, _VERMILION, _GREEN, _ORANGE, _SKY, _PURPLE, _YELLOW),
}
# "dash" is kept for scales that a model does not apply.
_DASHES = ("solid", "dot", "dashdot", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon")


@dataclass(frozen=True)
class Identity:
    """What makes one model recognisable in every figure.

    Attributes:
        model: the name as given.
        label: the name shortened and escaped for plotly text.
        kind: ``live``, ``scale_free``, ``mixed`` or empty when unknown.
        colour: ``#rrggbb``.
        dash: plotly dash of its lines.
        symbol: plotly marker of its points.
    """

    model: str
    label: str
    kind: str
    colour: str
    dash: str
    symbol: str

    def faded(self, opacity: float) -> str:
        """The colour as ``rgba(...)`` with an opacity from 0 to 1."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({red},{green},{blue},{opacity})"


def identities(
    models: Sequence[str], provenance: Mapping[str, Mapping[str, Any]]
) -> dict[str, Identity]:
    """The identity of every model, by its kind in ``provenance`` and otherwise by position."""
    found: dict[str, Identity] = {}
    of_kind: dict[str, int] = {}
    for position, model in enumerate(models):
        kind = str(provenance.get(model, {}).get("kind", ""))
        preferred = _PREFERRED.get(kind, _PREFERRED[""])
        taken = {identity.colour for identity in found.values()}
        free = [colour for colour in preferred if colour not in taken]
        rank = of_kind.get(kind, 0)
        of_kind[kind] = rank + 1
        found[model] = Identity(
            model=model,
            label=shorten(model),
            kind=kind,
            colour=free[0] if free else preferred[position % len(preferred)],
            dash=_DASHES[rank % len(_DASHES)],
            symbol=_SYMBOLS[position % len(_SYMBOLS)],
        )
    return found


def of_result(result: Result) -> dict[str, Identity]:
    """The identity of every model of a result."""
    return identities(result.models, result.provenance)


def template(*, dark: bool = False) -> go.layout.Template:
    """The template of every figure; backgrounds are transparent, so it suits any page."""
    ink, quiet = (DARK[INK], DARK[QUIET]) if dark else (INK, QUIET)
    grid, line = ("#33373d", "#565b63") if dark else ("#e7e7e4", "#b9bbb8")
    axis = {
        "gridcolor": grid,
        "linecolor": line,
        "zerolinecolor": line,
        "zerolinewidth": 1,
        "ticks": "outside",
        "tickcolor": line,
        "ticklen": 4,
        "automargin": True,
        "title": {"font": {"size": 12, "color": quiet}, "standoff": 8},
        "tickfont": {"size": 11, "color": quiet},
    }
    bar = {"thickness": 12, "outlinewidth": 0, "tickfont": {"size": 10, "color": quiet}}
    hover = {"bgcolor": "#23272e", "bordercolor": "#565b63"} if dark else {"bgcolor": "#ffffff"}
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 12, "color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "title": {
                "x": 0,
                "xref": "container",
                "xanchor": "left",
                "y": 1,
                "yref": "container",
                "yanchor": "top",
                "pad": {"l": 4, "t": 18},
                "font": {"color": ink},
            },
            "legend": {
                "orientation": "h",
                "x": 0,
                "xref": "container",
                "xanchor": "left",
                "y": 0,
                "yref": "container",
                "yanchor": "bottom",
                "font": {"size": 12, "color": ink},
                "bgcolor": "rgba(0,0,0,0)",
            },
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": line, "activecolor": quiet},
            "hoverlabel": {"font": {"family": FONT, "size": 12, "color": ink}, "align": "left"}
            | hover,
            "xaxis": axis,
            "yaxis": axis,
            "coloraxis": {"colorbar": bar},
            "margin": {"l": 8, "r": 8, "t": 60, "b": 8},
            "annotationdefaults": {"font": {"size": 12, "color": ink}},
            "shapedefaults": {"line": {"color": quiet}},
        }
    )
