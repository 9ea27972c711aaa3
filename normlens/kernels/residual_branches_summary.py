"""From the statistics of ``branches`` to its table, headline numbers and check."""

from __future__ import annotations

import math

import pandas as pd
from torch import Tensor

from normlens.capture.protocol import Context, Finding
from normlens.capture.state import State
from normlens.capture.statistics import interval
from normlens.results import Check, Headline
from normlens.tolerances import for_dtype

GROUPS = ("first", "rest")
BRANCHES = ("attention", "mlp")
MEASURES = ("norm", "ratio", "cosine", "cosine_centred")


def summarise(state: State, context: Context) -> Finding:
    """Table, headline numbers, check and warnings of ``branches``."""
    headline, replicates = _headline(state)
    checks = (_check(state, context),)
    return Finding(
        {"branches": _table(state)}, headline, checks, _warnings(state, context), replicates
    )


def _table(state: State) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for group in GROUPS:
        counts = state.tensors[f"n.{group}"]
        means = state.tensors[f"sums.{group}"] / counts
        boot = _ratios(state, group)
        for b, branch in enumerate(BRANCHES):
            for layer, n in enumerate(counts[b].tolist()):
                low, high = interval(boot[:, b, layer]) if n else (math.nan, math.nan)
                overflow = int(state.tensors[f"overflow.{group}"][b, layer])
                rows.append(
                    {
                        "layer": layer,
                        "branch": branch,
                        "group": group,
                        "n": n,
                        **dict(zip(MEASURES, means[:, b, layer].tolist(), strict=True)),
                        "ratio_low": low,
                        "ratio_high": high,
                        "status": "no_data" if not n else "overflow" if overflow else "ok",
                    }
                )
    return pd.DataFrame(rows)


def _ratios(state: State, group: str) -> Tensor:
    """Replicates of the mean ratio, ``[replicate branch layer]``."""
    count, ratio = state.tensors[f"replicates.{group}"].unbind(1)
    return ratio / count


def _headline(state: State) -> tuple[tuple[Headline, ...], dict[str, Tensor]]:
    counts = state.tensors["n.rest"]
    ratios = state.tensors["sums.rest"][MEASURES.index("ratio")] / counts
    boot = _ratios(state, "rest").quantile(0.5, dim=-1)
    n = int(counts.max())
    found: list[Headline] = []
    for b, branch in enumerate(BRANCHES):
        low, high = interval(boot[:, b]) if n else (math.nan, math.nan)
        doc = (
            f"norm of what {branch} adds over that of the block's input, mean over tokens after "
            "the first, median over blocks"
        )
        value = float(ratios[b].quantile(0.5)) if n else math.nan
        found.append(Headline(f"{branch}_ratio", value, "1", doc, n, low, high))
    replicates = {f"{branch}_ratio": boot[:, b] for b, branch in enumerate(BRANCHES)}
    return tuple(found), replicates if n else {}


def _check(state: State, context: Context) -> Check:
    value = float(state.tensors["sum_error"])
    tolerance = for_dtype("component_sum", context.lens.placement.dtype)
    doc = "largest error of input + branches = output over all blocks, relative to the terms"
    return Check("branches_add_up", value, tolerance, value <= tolerance, doc)


def _warnings(state: State, context: Context) -> tuple[str, ...]:
    lost = sum(int(state.tensors[f"overflow.{group}"].max()) for group in GROUPS)
    if not lost:
        return ()
    return (
        f"up to {lost} tokens have a branch or residual that is 0 or not finite in "
        f"{context.lens.placement.dtype} and are left out there; open the model in float32",
    )
