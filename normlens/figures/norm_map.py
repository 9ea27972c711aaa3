"""The picture of a norm's map: one element of its output against that element of its input.

The other elements are held fixed at several sizes. Curves that lie on each other mean that
the map knows nothing of the other elements; straight ones that it is affine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from normlens.figures.theme import template

COLOURS = ("#0072B2", "#E69F00", "#D55E00")
DASHES = ("solid", "dash", "dot")


@dataclass(frozen=True)
class Slice:
    """One curve.

    Attributes:
        others: root mean square of the other elements.
        x: values of the element, in the units of the input.
        y: that element of the output.
    """

    others: float
    x: tuple[float, ...]
    y: tuple[float, ...]


def figure(slices: Sequence[Slice]) -> go.Figure:
    """The curves of one norm.

    Args:
        slices: at most three, in ascending order of ``others``.
    """
    drawn = go.Figure(layout={"template": template(), "height": 340})
    for one, colour, dash in zip(slices, COLOURS, DASHES, strict=False):
        drawn.add_scatter(
            x=one.x,
            y=one.y,
            name=f"others {one.others:g}",
            line={"color": colour, "dash": dash, "width": 2.5},
            hovertemplate=f"x %{{x:.3g}}, y %{{y:.3g}}<extra>others {one.others:g}</extra>",
        )
    drawn.update_xaxes(title_text="one element of the input")
    drawn.update_yaxes(title_text="that element of the output")
    drawn.update_layout(margin={"t": 12, "b": 40}, showlegend=True)
    return drawn
