"""Figures of ``prompt-scale``: scales by site and token, the residual's size by depth."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from normlens.figures import theme
from normlens.figures.frame import finish, models_with_data, rows
from normlens.figures.prompt_apart import SizeMap, over_median, ratio_of, size_maps
from normlens.figures.prompt_maps import are_related, tokens_of
from normlens.figures.tokens import escape
from normlens.results import Result

NOT_APPLIED = "would-be scale, not applied"
FIRST_APART = "left: the first token, its number in the cell; colours span the others"


def by_site(result: Result) -> go.Figure:
    """Every norm's scale at every token, on a log colour scale."""
    models = models_with_data(result, "scale")
    maps = [_scale_map(result, model) for model in models]
    maps = _with_ratio(result, models, maps)
    figure, height, note = size_maps(maps, what="scale", columns=("site", "layer"))
    return finish(
        figure,
        result,
        "scale",
        title="By what each norm divides each token (residual units, log colours)",
        notes=(FIRST_APART, _not_applied_note(result, models), _heads_note(result), note),
        height=height,
    )


def relative(result: Result) -> go.Figure:
    """Every norm's scale over its median token's: which tokens it divides by more or less."""
    models = models_with_data(result, "scale")
    maps = [over_median(_scale_map(result, model)) for model in models]
    figure, height, note = size_maps(maps, what="scale", columns=("site", "layer"))
    return finish(
        figure,
        result,
        "scale",
        title="Each token's scale over the median token's at that norm (log colours)",
        notes=(
            "a fixed scale leaves these differences in the stream",
            FIRST_APART,
            _not_applied_note(result, models),
            _heads_note(result),
            note,
        ),
        height=height,
    )


def residual(result: Result) -> go.Figure:
    """The L2 norm of the residual stream at every depth and token."""
    models = models_with_data(result, "residual")
    maps = [_residual_map(result, model) for model in models]
    maps = _with_ratio(result, models, maps)
    figure, height, note = size_maps(maps, what="norm", y="point")
    figure.update_yaxes(title_text="before block", col=1)
    return finish(
        figure,
        result,
        "residual",
        title="Size of the residual stream by depth and token (L2 norm, log colours)",
        notes=(FIRST_APART, "last row: after the last block", note),
        height=height,
    )


def _scale_map(result: Result, model: str) -> SizeMap:
    table = result.tables["scale"]
    frame = table[(table["model"] == model) & (table["status"] != "overflow")]
    order = frame[["site", "layer", "order", "applied"]].drop_duplicates("site")
    order = order.sort_values("order")
    mean = frame.pivot_table(
        index="site", columns="position", values="scale", aggfunc="mean", dropna=False
    ).reindex(order["site"])
    positions = range(int(frame["position"].max()) + 1)
    applied = order["applied"].to_numpy(bool)
    kinds = frame.drop_duplicates("site").set_index("site")["status"].reindex(order["site"])
    suffix = [
        "" if live or status != "ok" else " (not applied)"
        for live, status in zip(applied, kinds, strict=True)
    ]
    if not applied.any():
        # The panel's title says it once for all of them.
        suffix = [""] * len(suffix)
    names = tuple(f"{escape(str(s))}{mark}" for s, mark in zip(order["site"], suffix, strict=True))
    label = theme.of_result(result)[model].label
    title = label if applied.any() else f"{label}: {NOT_APPLIED}"
    keys = order[["site", "layer"]].astype(object)
    return SizeMap(
        title,
        mean.reindex(columns=positions).to_numpy(float),
        names,
        tuple(tokens_of(result, "scale", model)),
        model,
        keys.where(keys.notna(), None).to_numpy(object),
    )


def _residual_map(result: Result, model: str) -> SizeMap:
    frame = rows(result, "residual", model)
    table = frame.pivot_table(index="point", columns="position", values="norm", dropna=False)
    positions = range(int(frame["position"].max()) + 1)
    values = table.reindex(columns=positions).to_numpy(float)
    points = [int(point) for point in table.index]
    names = tuple("end" if point == points[-1] else str(point) for point in points)
    tokens = tuple(tokens_of(result, "residual", model))
    keys = np.empty((len(names), 0), dtype=object)
    return SizeMap(theme.of_result(result)[model].label, values, names, tokens, model, keys)


def _with_ratio(result: Result, models: list[str], maps: list[SizeMap]) -> list[SizeMap]:
    if not are_related(result, models) or maps[0].tokens != maps[1].tokens:
        return maps
    first, second = maps
    if first.keys.tolist() != second.keys.tolist() or len(first.values) != len(second.values):
        return maps
    looks = theme.of_result(result)
    title = f"{looks[models[1]].label} / {looks[models[0]].label}"
    return [*maps, ratio_of(title, first, second)]


def _not_applied_note(result: Result, models: list[str]) -> str:
    free = [m for m in models if not rows(result, "scale", m)["applied"].all()]
    return f"not applied: the model divides by a constant ({', '.join(free)})" if free else ""


def _heads_note(result: Result) -> str:
    per_head = result.tables["scale"]["head"].notna().any()
    return "norms of single heads: mean over the heads" if per_head else ""
