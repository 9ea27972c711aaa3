"""Figures of ``curves``: the curves and what fits them."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.curves_panels import (
    ENOUGH,
    TAIL,
    Site,
    elements_note,
    fit_lines,
    mean_and_spread,
    rest_rows,
    sites_of,
    spread_out,
)
from normlens.figures.frame import (
    finish,
    grid_shape,
    models_with_data,
    panel_titles,
    stack_legend_once,
)
from normlens.figures.tokens import escape
from normlens.results import Result

_PANELS = 6
_ROW = 210
_FEW = f"values of x with fewer than {ENOUGH} elements are fitted but not drawn"


def shapes(result: Result) -> go.Figure:
    """Mean curve and spread at a few depths, x in multiples of its RMS."""
    models = models_with_data(result, "curves")
    chosen = {model: spread_out(sites_of(result, model), _PANELS) for model in models}
    panels = max((len(sites) for sites in chosen.values()), default=1)
    titles = [_title(chosen, i) for i in range(panels)]
    figure, columns = _grid(titles)
    looks = theme.of_result(result)
    for model, sites in chosen.items():
        for i, site in enumerate(sites):
            for trace in mean_and_spread(site, looks[model], float(site.fits["rms"])):
                figure.add_trace(trace, row=i // columns + 1, col=i % columns + 1)
    stack_legend_once(figure)
    _axes(figure, columns, "x / RMS of x", "x̂")
    same = len({tuple(site.label for site in sites) for sites in chosen.values()}) < 2
    return finish(
        figure,
        result,
        "fits",
        title="Input of a norm against its output before the gain",
        notes=(
            elements_note(result),
            "mean of x̂ over the elements with that x; band: ± 1 sd",
            _FEW,
            "first tokens left out; each x in multiples of its own RMS at that norm",
            "" if same else "models differ in their norms; aligned by relative depth",
        ),
        height=_ROW * -(-panels // columns) + 30,
    )


def fits(result: Result) -> go.Figure:
    """The curve with its three fits: evenly over depth, or the most and least bent norm."""
    models = models_with_data(result, "curves")
    shown = [(model, site) for model in models for site in _to_fit(result, model, len(models))]
    looks = theme.of_result(result)
    several = len(models) > 1
    titles = [
        f"{looks[model].label}<br>{escape(site.label)}" if several else escape(site.label)
        for model, site in shown
    ]
    figure, columns = _grid(titles, lines=1 + several)
    for i, (model, site) in enumerate(shown):
        where: dict[str, Any] = {"row": i // columns + 1, "col": i % columns + 1}
        for trace in (*mean_and_spread(site, looks[model], 1.0), *fit_lines(site)):
            figure.add_trace(trace, **where)
        for edge in (-site.tail, site.tail) if np.isfinite(site.tail) else ():
            figure.add_vline(x=edge, line={"width": 1, "dash": "dot"}, **where)
    stack_legend_once(figure)
    _axes(figure, columns, "x (input units)", "x̂")
    return finish(
        figure,
        result,
        "fits",
        title="Curve of a norm and what fits it",
        notes=(
            elements_note(result),
            "least squares over all elements; band: ± 1 sd of x̂ at that x",
            _FEW,
            "beyond the dotted lines: the largest 0.1 % of |x|",
            "of each model the most and the least bent norm" if several else "",
        ),
        height=(_ROW + 24 * several) * -(-max(len(shown), 1) // columns) + 30,
    )


def _to_fit(result: Result, model: str, models: int) -> list[Site]:
    """What ``fits`` shows of a model."""
    sites = sites_of(result, model)
    if models == 1:
        return spread_out(sites, _PANELS)
    tails = rest_rows(result, "tails", model)
    bends = tails[tails["range"] == TAIL].set_index("site")["bend"].astype(float)
    ranked = sorted(sites, key=lambda site: float(bends.get(site.label, np.inf)))
    return ranked if len(ranked) < 2 else [ranked[0], ranked[-1]]


def _grid(titles: list[str], *, lines: int = 1) -> tuple[go.Figure, int]:
    count, columns = grid_shape(max(len(titles), 1))
    figure = make_subplots(
        rows=count,
        cols=columns,
        vertical_spacing=(0.2 + 0.17 * lines) / (count + 1),
        horizontal_spacing=0.12,
        subplot_titles=titles or None,
    )
    panel_titles(figure, titles)
    return figure, columns


def _axes(figure: go.Figure, columns: int, x_title: str, y_title: str) -> None:
    figure.update_yaxes(title_text=y_title, col=1)
    layout: Any = figure.layout
    last = max(1, -(-len(layout.annotations) // columns))
    figure.update_xaxes(title_text=x_title, row=last)
    figure.update_xaxes(nticks=5, tickangle=0)


def _title(chosen: dict[str, list[Site]], index: int) -> str:
    labels = [sites[index].label for sites in chosen.values() if index < len(sites)]
    return escape(" / ".join(dict.fromkeys(labels)))
