"""One head's attention pattern on a prompt, and which head to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from normlens.figures import theme
from normlens.figures.declared import meaning
from normlens.figures.frame import finish, models_with_data, panel_titles, rows
from normlens.figures.limits import robust_limits
from normlens.figures.prompt_maps import (
    Matrix,
    are_related,
    cells,
    details_of,
    scatter_into,
    share_colours,
    shown,
    token_axis,
    tokens_of,
)
from normlens.results import Result


@dataclass(frozen=True)
class Choice:
    """The head to show of every model, and why it."""

    heads: dict[str, tuple[int, int]]
    reason: str


@dataclass(frozen=True)
class _Panel:
    title: str
    model: str
    at: tuple[int, int]
    weights: Matrix
    tokens: list[str]
    start: int
    signed: bool = False


def pattern(result: Result, layer: int | None = None, head: int | None = None) -> go.Figure:
    """The pattern of one head in every model, and B - A where the same index means the same.

    Args:
        result: of ``prompt-attention``.
        layer: block index from 0.
        head: head index from 0. Without both, the head is chosen: of two related models the
            one whose attention differs most, else each model's with the largest induction
            score.
    """
    models = models_with_data(result, "patterns")
    if layer is None or head is None:
        choice = default_head(result, models)
    else:
        choice = Choice({model: (layer, head) for model in models}, "")
    looks = theme.of_result(result)
    panels = [
        _panel(result, model, choice.heads[model], looks[model].label)
        for model in models
        if _has(result, model, choice.heads[model])
    ]
    comparable = (
        len(panels) == 2
        and are_related(result, models)
        and len(set(choice.heads.values())) == 1
        and panels[0].tokens == panels[1].tokens
    )
    if comparable:
        first, second = panels
        title = f"{looks[models[1]].label} − {looks[models[0]].label}"
        change = second.weights - first.weights
        panels.append(replace(first, title=title, weights=change, signed=True))
    figure, height = _draw(panels)
    limits = robust_limits(panels[-1].weights if comparable else np.array([0.0]), signed=True)
    figure.update_layout(**share_colours(limits.high, difference=comparable), showlegend=False)
    names = {f"L{i}.H{j}" for i, j in choice.heads.values()}
    named = names.pop() if len(names) == 1 else "one head of each model"
    return finish(
        figure,
        result,
        "patterns",
        title=f"Attention pattern of {named} (weight of key on query)",
        notes=(
            choice.reason,
            _window_note(panels),
            *(
                f"{model}: there is no L{i}.H{j}"
                for model, (i, j) in choice.heads.items()
                if not _has(result, model, (i, j))
            ),
            limits.note if comparable else "",
        ),
        height=height,
    )


def default_head(result: Result, models: Sequence[str]) -> Choice:
    """The head whose attention differs most, or each model's with the most induction.

    The difference is the total variation ``1/2 sum_j |a_ij - b_ij|``, mean over queries.
    """
    if are_related(result, models):
        arrays = [_weights(rows(result, "patterns", model)) for model in models]
        if arrays[0].shape == arrays[1].shape:
            apart = np.nansum(np.abs(arrays[1] - arrays[0]), -1) / 2
            queries = np.isfinite(arrays[0]).any(-1)
            mean = np.where(queries, apart, 0).sum(-1) / np.maximum(queries.sum(-1), 1)
            layer, head = (int(i) for i in np.unravel_index(int(mean.argmax()), mean.shape))
            reason = (
                f"the head that differs most: total variation {mean.max():.2g}, mean of queries"
            )
            return Choice(dict.fromkeys(models, (layer, head)), reason)
    heads: dict[str, tuple[int, int]] = {}
    named: dict[str, None] = {}
    for model in models:
        heads[model], score = _largest(rows(result, "heads", model))
        named[score.replace("_", " ")] = None
    of_each = "the head" if len(models) == 1 else "each model's head"
    return Choice(heads, f"{of_each} with the largest {' or '.join(named)} score" if named else "")


def _largest(frame: pd.DataFrame) -> tuple[tuple[int, int], str]:
    """The head with the largest score, and which: the first of these that is known."""
    for score in ("induction", "previous_token", "first_token"):
        values = frame[score].to_numpy(float)
        if np.isfinite(values).any():
            best = int(np.nanargmax(values))
            return (int(frame["layer"].iloc[best]), int(frame["head"].iloc[best])), score
    return (0, 0), "first_token"


def _weights(frame: pd.DataFrame) -> np.ndarray:
    """``[layer head query key]`` from the first query that is kept."""
    start = int(frame["query"].min()) if len(frame) else 0
    placed = frame.assign(query=frame["query"] - start, key=frame["key"] - start)
    return scatter_into(placed, ("layer", "head", "query", "key"), "weight")


def _of_head(frame: pd.DataFrame, at: tuple[int, int]) -> pd.DataFrame:
    return frame[(frame["layer"] == at[0]) & (frame["head"] == at[1])]


def _has(result: Result, model: str, at: tuple[int, int]) -> bool:
    return len(_of_head(rows(result, "patterns", model), at)) > 0


def _panel(result: Result, model: str, at: tuple[int, int], label: str) -> _Panel:
    frame = _of_head(rows(result, "patterns", model), at)
    tokens = tokens_of(result, "queries", model)
    start = int(frame["query"].min())
    kind = _of_head(rows(result, "heads", model), at)["category"]
    name = str(kind.iloc[0]).replace("_", " ") if len(kind) else "other"
    title = f"{label} L{at[0]}.H{at[1]}: {name}"
    return _Panel(title, model, at, _weights(frame)[at[0], at[1]], tokens[start:], start)


def _draw(panels: Sequence[_Panel]) -> tuple[go.Figure, int]:
    """One below the other: labels of tokens leave no room for two on a phone."""
    count = max(1, len(panels))
    longest = max((len(panel.tokens) for panel in panels), default=1)
    plot = float(np.clip(17 * longest, 170, 460))
    height = count * (plot + 100)
    figure = make_subplots(
        rows=count,
        vertical_spacing=100 / height if count > 1 else 0,
        subplot_titles=[panel.title for panel in panels],
    )
    for row, panel in enumerate(panels, 1):
        place: dict[str, Any] = {"row": row, "col": 1}
        for trace in _traces(panel):
            figure.add_trace(trace, **place)
        axis = token_axis(panel.tokens, panel.start, most=24)
        low, high = axis["range"]
        x_title = "key" if row == count else ""
        figure.update_xaxes(**axis, tickangle=-60, title_text=x_title, **place)
        figure.update_yaxes(**axis | {"range": [high, low]}, title_text="query", **place)
    panel_titles(figure, [panel.title for panel in panels])
    return figure, round(height)


def _traces(panel: _Panel) -> tuple[go.Heatmap, go.Heatmap]:
    positions = range(panel.start, panel.start + len(panel.tokens))
    words = np.array(shown(panel.tokens), dtype=object)
    layer, head = panel.at
    number = "%{z:+.2%}" if panel.signed else "%{z:.2%}"
    return cells(
        panel.weights,
        x=positions,
        y=positions,
        coloraxis="coloraxis2" if panel.signed else "coloraxis",
        hover=(
            "query %{y}: “%{customdata[0]}”<br>key %{x}: “%{customdata[1]}”"
            f"<br>weight {number}"
        ),
        details=details_of((len(words), len(words)), words[:, None], words[None, :]),
        meta=meaning(y="position", constant={"layer": layer, "head": head}, model=panel.model),
        absent="the key comes after the query",
    )


def _window_note(panels: Sequence[_Panel]) -> str:
    if not any(panel.start for panel in panels):
        return ""
    panel = next(panel for panel in panels if panel.start)
    total = panel.start + len(panel.tokens)
    return f"the last {len(panel.tokens):,} of {total:,} tokens"
