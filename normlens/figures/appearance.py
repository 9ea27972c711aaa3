"""A finished figure on another page, or with another depth axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import plotly.graph_objects as go

from normlens.figures import theme
from normlens.figures.relative import relative_depth

__all__ = ["dressed", "relative_depth"]


def dressed(figure: go.Figure, *, dark: bool) -> go.Figure:
    """A copy for a light or a dark page.

    The template is replaced, and every colour that stands for ink or paper
    (:data:`normlens.figures.theme.DARK`) becomes that of the page. Colours of models and maps
    are the same on both. A page must not put a theme of its own over it.
    """
    colours = theme.DARK if dark else {value: key for key, value in theme.DARK.items()}
    traces = [trace.to_plotly_json() for trace in cast(Sequence[Any], figure.data)]
    layout = cast(dict[str, Any], cast(Any, figure.layout).to_plotly_json())
    layout.pop("template", None)
    copy = go.Figure(
        data=[_recoloured(trace, colours) for trace in traces],
        layout=_recoloured(layout, colours),
    )
    copy.update_layout(template=theme.template(dark=dark))
    return copy


def _recoloured(value: Any, colours: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: item
            if key in ("customdata", "text", "hovertemplate", "meta")
            else _recoloured(item, colours)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_recoloured(item, colours) for item in value]
    return colours.get(value, value) if isinstance(value, str) else value
