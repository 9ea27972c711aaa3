"""From the statistics of ``residual`` to its tables, headline numbers and checks."""

from __future__ import annotations

import math

import pandas as pd
from torch import Tensor

from normlens.capture.protocol import Context, Finding
from normlens.capture.state import State
from normlens.capture.statistics import interval, log_quantile
from normlens.models.lens import Lens, NormSite, Role
from normlens.results import Check, Headline
from normlens.tolerances import for_dtype

GROUPS = ("first", "rest")
STEP_MEASURES = ("influence", "angular_distance", "influence_centred", "influence_trimmed")
"""``1 - cosine`` is summed, and the cosine derived from it."""


def final_site(lens: Lens) -> NormSite | None:
    """The norm that reads the last point, if there is one."""
    return next((site for site in lens.sites if site.role is Role.FINAL), None)


def summarise(state: State, context: Context) -> Finding:
    """Tables, headline numbers, checks and warnings of ``residual``."""
    logs = {group: _logs(state, group) for group in GROUPS}
    tables = {
        "points": _points(state, logs),
        "first_token": _first_token(state, logs),
        "steps": _steps(state),
    }
    headline, replicates = _headline(state, logs)
    checks = _checks(state, context)
    return Finding(tables, headline, checks, _warnings(state, context), replicates)


def _logs(state: State, group: str) -> tuple[Tensor, Tensor]:
    """Mean ``ln norm`` by point, and that of the replicates ``[replicate point]``."""
    n, total = state.tensors[f"n.points.{group}"], state.tensors[f"sums.points.{group}"][1]
    count, boot = state.tensors[f"replicates.points.{group}"].unbind(1)
    return total / n, boot / count


def _points(state: State, logs: dict[str, tuple[Tensor, Tensor]]) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for group, (mean_log, boot) in logs.items():
        counts = state.tensors[f"n.points.{group}"]
        norm, _, variance = state.tensors[f"sums.points.{group}"] / counts
        for point, n in enumerate(counts.tolist()):
            low, high = _interval((boot[:, point] - boot[:, 0]).exp(), n)
            histogram = state.tensors[f"histogram.{group}"][point]
            rows.append(
                {
                    "point": point,
                    "group": group,
                    "n": n,
                    "norm": float(norm[point]),
                    "q50": log_quantile(histogram, 0.5),
                    "typical": float(mean_log[point].exp()),
                    "variance": float(variance[point]),
                    "growth": float((mean_log[point] - mean_log[0]).exp()),
                    "growth_low": low,
                    "growth_high": high,
                    "status": _status(n, state.tensors[f"overflow.points.{group}"][point]),
                }
            )
    return pd.DataFrame(rows)


def _first_token(state: State, logs: dict[str, tuple[Tensor, Tensor]]) -> pd.DataFrame:
    ratio, boot = _first_over_rest(logs)
    rows: list[dict[str, object]] = []
    for point, n in enumerate(state.tensors["n.points.rest"].tolist()):
        low, high = _interval(boot[:, point], n)
        medians = [log_quantile(state.tensors[f"histogram.{g}"][point], 0.5) for g in GROUPS]
        overflow = sum(int(state.tensors[f"overflow.points.{g}"][point]) for g in GROUPS)
        rows.append(
            {
                "point": point,
                "n": n,
                "ratio": float(ratio[point]),
                "ratio_low": low,
                "ratio_high": high,
                "q50_ratio": medians[0] / medians[1],
                "status": _status(n, overflow),
            }
        )
    return pd.DataFrame(rows)


def _first_over_rest(logs: dict[str, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    (first, first_boot), (rest, rest_boot) = logs["first"], logs["rest"]
    return (first - rest).exp(), (first_boot - rest_boot).exp()


def _steps(state: State) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for group in GROUPS:
        counts = state.tensors[f"n.steps.{group}"]
        means = state.tensors[f"sums.steps.{group}"] / counts
        count, *boot = state.tensors[f"replicates.steps.{group}"].unbind(1)
        for layer, n in enumerate(counts.tolist()):
            influence, angle, centred, trimmed = means[:, layer].tolist()
            low, high = _interval(boot[0][:, layer] / count[:, layer], n)
            angle_low, angle_high = _interval(boot[1][:, layer] / count[:, layer], n)
            rows.append(
                {
                    "layer": layer,
                    "group": group,
                    "n": n,
                    "cosine": 1 - influence,
                    "cosine_centred": 1 - centred,
                    "cosine_trimmed": 1 - trimmed,
                    "influence": influence,
                    "influence_low": low,
                    "influence_high": high,
                    "angular_distance": angle,
                    "angular_distance_low": angle_low,
                    "angular_distance_high": angle_high,
                    "status": _status(n, state.tensors[f"overflow.steps.{group}"][layer]),
                }
            )
    return pd.DataFrame(rows)


def _headline(
    state: State, logs: dict[str, tuple[Tensor, Tensor]]
) -> tuple[tuple[Headline, ...], dict[str, Tensor]]:
    mean_log, boot = logs["rest"]
    ratio, ratio_boot = _first_over_rest(logs)
    n = int(state.tensors["n.points.rest"].max())
    steps = int(state.tensors["n.steps.rest"].max())
    angles = state.tensors["sums.steps.rest"][:2] / state.tensors["n.steps.rest"]
    counts, *summed = state.tensors["replicates.steps.rest"].unbind(1)
    largest = int(ratio.argmax()) if n else 0
    least = int(angles[0].argmin()) if steps else 0
    values: dict[str, tuple[float, Tensor, int, str]] = {
        "growth": (
            float((mean_log[-1] - mean_log[0]).exp()),
            (boot[:, -1] - boot[:, 0]).exp(),
            n,
            "norm of the last residual over that before block 0, typical token after the first",
        ),
        "growth_after_block_0": (
            float((mean_log[-1] - mean_log[1]).exp()),
            (boot[:, -1] - boot[:, 1]).exp(),
            n,
            "the same over that after block 0, without the step from embeddings",
        ),
        "first_token_ratio_largest": (
            float(ratio[largest]),
            ratio_boot[:, largest],
            n,
            "norm of the first token over that of the typical other one, largest over depth, "
            f"here {_place(largest, len(ratio))}",
        ),
        "angular_distance": (
            float(angles[1].mean()),
            (summed[1] / counts).mean(-1),
            steps,
            "angle between a block's input and output over pi, mean over blocks and tokens after "
            "the first",
        ),
        "influence_smallest": (
            float(angles[0, least]),
            (summed[0] / counts)[:, least],
            steps,
            f"smallest block influence 1 - cos(input, output), here block {least}",
        ),
    }
    headline = tuple(
        Headline(name, value if n else math.nan, "1", doc, n, *_interval(replicates, n))
        for name, (value, replicates, n, doc) in values.items()
    )
    kept = {name: replicates for name, (_, replicates, n, _) in values.items() if n}
    return headline, kept


def _place(point: int, points: int) -> str:
    return "after the last block" if point == points - 1 else f"before block {point}"


def _checks(state: State, context: Context) -> tuple[Check, ...]:
    if final_site(context.lens) is None:
        return ()
    value = float(state.tensors["final"])
    tolerance = for_dtype("site_residual", context.lens.placement.dtype)
    doc = "relative difference between the norm after the last block and of the final norm's input"
    return (Check("last_point_is_read_by_final_norm", value, tolerance, value <= tolerance, doc),)


def _warnings(state: State, context: Context) -> tuple[str, ...]:
    lost = sum(int(state.tensors[f"overflow.points.{group}"].max()) for group in GROUPS)
    if not lost:
        return ()
    return (
        f"up to {lost} tokens have a residual that is 0 or not finite in "
        f"{context.lens.placement.dtype} and are left out where it is; open the model in float32",
    )


def _interval(replicates: Tensor, n: int) -> tuple[float, float]:
    return interval(replicates) if n else (math.nan, math.nan)


def _status(n: int, overflow: Tensor | int) -> str:
    return "no_data" if not n else "overflow" if overflow else "ok"
