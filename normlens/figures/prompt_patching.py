"""Figures of ``prompt-patching``: what is recovered where, and by depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.declared import meaning
from normlens.figures.frame import finish, models_with_data, panel_titles, rows, stack_legend_once
from normlens.figures.limits import robust_limits
from normlens.figures.prompt_maps import (
    BAR,
    Matrix,
    are_related,
    cells,
    details_of,
    row_axis,
    scatter_into,
    token_axis,
)
from normlens.figures.tokens import visible
from normlens.results import Result

KINDS = {"residual": "residual stream", "attention": "attention output", "mlp": "MLP output"}


def recovery(result: Result) -> go.Figure:
    """Recovery by depth and position, one column per kind of activation."""
    models = models_with_data(result, "recovery")
    looks = theme.of_result(result)
    panels = [(looks[m].label, m, {kind: _grid(result, m, kind) for kind in KINDS}) for m in models]
    differ = _comparable(result, models, [grids for _, _, grids in panels])
    if differ:
        (first, model, a), (second, _, b) = panels
        panels.append((f"{second} − {first}", model, {kind: b[kind] - a[kind] for kind in KINDS}))
    depth = max((grids["residual"].shape[0] for *_, grids in panels), default=1)
    plot = float(np.clip(17 * depth, 110, 420))
    count = max(1, len(panels))
    height = count * (plot + 108)
    titles = [f"{label}<br>{name}" for label, *_ in panels for name in KINDS.values()]
    figure = make_subplots(
        rows=count,
        cols=len(KINDS),
        horizontal_spacing=0.05,
        vertical_spacing=108 / height if count > 1 else 0,
        subplot_titles=titles or None,
    )
    for row, (_, model, grids) in enumerate(panels, start=1):
        signed = differ and row == count
        for column, kind in enumerate(KINDS, start=1):
            _add_map(figure, result, model, kind, grids[kind], (row, column), signed=signed)
    panel_titles(figure, titles)
    values = [g for *_, grids in panels[: len(models)] for g in grids.values()]
    reach = max(1.0, *(float(np.nanmax(np.abs(g), initial=0.0)) for g in values), 1.0)
    change = [g.ravel() for g in panels[-1][2].values()] if differ else [np.array([0.0])]
    limits = robust_limits(np.concatenate(change), signed=True)
    figure.update_layout(
        showlegend=False,
        coloraxis=_axis(reach) | {"colorbar": {"y": 1, "yanchor": "top", **BAR}},
        coloraxis2=_axis(limits.high)
        | {"colorbar": {"y": 0, "yanchor": "bottom", **BAR}, "showscale": differ},
    )
    return finish(
        figure,
        result,
        "recovery",
        title="Recovery of the clean answer by patching one activation",
        notes=(*_baselines(result, models), "these: clean → corrupted prompt",
               "1: the clean answer is back; 0: no change",
               "residual: before a block, the last row after all of them",
               limits.note if differ else ""),
        height=round(height),
    )  # fmt: skip


def by_layer(result: Result) -> go.Figure:
    """The best recovery of a single position, by depth."""
    models = models_with_data(result, "recovery")
    looks = theme.of_result(result)
    figure = make_subplots(
        rows=1, cols=len(KINDS), shared_yaxes=True, horizontal_spacing=0.03,
        subplot_titles=list(KINDS.values()),
    )  # fmt: skip
    for model in models:
        frame = rows(result, "recovery", model)
        for column, kind in enumerate(KINDS, start=1):
            figure.add_trace(_best(frame[frame["what"] == kind], looks[model], kind), 1, column)
    stack_legend_once(figure)
    panel_titles(figure, list(KINDS.values()))
    figure.update_xaxes(title_text="block")
    figure.update_yaxes(title_text="recovery", col=1)
    return finish(
        figure,
        result,
        "recovery",
        title="Recovery by the best single position, by depth",
        notes=("residual: before that block, the last point after all of them",),
        height=320,
    )


def _best(frame: Any, look: theme.Identity, kind: str) -> go.Scatter:
    known = frame[frame["recovery"].notna()]
    best = known.loc[known.groupby("point")["recovery"].idxmax()].sort_values("point")
    fields = best[["position", "token"]].assign(token=[visible(str(t)) for t in best["token"]])
    return go.Scatter(
        x=best["point"].to_numpy(int),
        y=best["recovery"].to_numpy(float),
        mode="lines+markers",
        name=look.label,
        legendgroup=look.model,
        line={"color": look.colour, "dash": look.dash, "width": 2},
        marker={"symbol": look.symbol, "size": 7},
        customdata=fields.to_numpy(object),
        meta=meaning(
            x="point" if kind == "residual" else "layer", columns=("position",), model=look.model
        ),
        hovertemplate=(
            "%{x} · %{fullData.name}<br>recovery %{y:.3g} at %{customdata[0]}: "
            "“%{customdata[1]}”<extra></extra>"
        ),
    )


def _grid(result: Result, model: str, kind: str) -> Matrix:
    frame = rows(result, "recovery", model)
    return scatter_into(frame[frame["what"] == kind], ("point", "position"), "recovery")


def _tokens(result: Result, model: str) -> tuple[list[str], list[str]]:
    frame = rows(result, "recovery", model).drop_duplicates("position").sort_values("position")
    return list(frame["token"].astype(str)), list(frame["corrupted_token"].astype(str))


def _comparable(result: Result, models: list[str], grids: list[dict[str, Matrix]]) -> bool:
    return (
        are_related(result, models)
        and all(grids[0][kind].shape == grids[1][kind].shape for kind in KINDS)
        and _tokens(result, models[0]) == _tokens(result, models[1])
    )


def _add_map(
    figure: go.Figure,
    result: Result,
    model: str,
    kind: str,
    grid: Matrix,
    place: tuple[int, int],
    *,
    signed: bool,
) -> None:
    clean, corrupted = _tokens(result, model)
    words = [
        visible(a) if a == b else f"{visible(a)} for {visible(b)}"
        for a, b in zip(clean, corrupted, strict=True)
    ]
    shape = (grid.shape[0], grid.shape[1])
    number = "%{z:+.3g}" if signed else "%{z:.3g}"
    traces = cells(
        grid,
        x=range(shape[1]),
        y=range(shape[0]),
        coloraxis="coloraxis2" if signed else "coloraxis",
        hover=f"{KINDS[kind]} %{{y}} at %{{x}}: “%{{customdata[0]}}”<br>recovery {number}",
        details=details_of(shape, words),
        meta=meaning(x="position", y="point" if kind == "residual" else "layer", model=model),
    )
    for trace in traces:
        figure.add_trace(trace, row=place[0], col=place[1])
    figure.update_xaxes(**token_axis(clean), tickangle=-60, row=place[0], col=place[1])
    labels = [str(point) for point in range(shape[0])]
    axis = row_axis(labels, most=16) | {"range": [-0.5, shape[0] - 0.5]}
    axis["title_text"] = "block" if place[1] == 1 else ""
    figure.update_yaxes(axis, row=place[0], col=place[1])


def _axis(reach: float) -> dict[str, Any]:
    colours = [list(stop) for stop in theme.DIVERGING]
    return {"colorscale": colours, "cmin": -reach, "cmax": reach}


def _baselines(result: Result, models: list[str]) -> list[str]:
    """The two prompts' logit differences in every model, logits."""
    notes = []
    for model in models:
        frame = rows(result, "runs", model)
        if not len(frame):
            continue
        by_run = frame.set_index("run")
        clean, corrupted = (by_run["difference"].get(run, np.nan) for run in ("clean", "corrupted"))
        answer, wrong = (str(frame[name].iloc[0]).replace(" ", "·") for name in ("answer", "wrong"))
        notes.append(f"{model}: “{answer}” − “{wrong}” {clean:+.2f} → {corrupted:+.2f} logits")
    return notes
