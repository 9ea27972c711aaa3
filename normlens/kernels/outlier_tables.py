"""The tables of ``outliers`` from its statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch

from normlens.capture.statistics import interval, log_quantile
from normlens.kernels.outlier_features import CRITERIA, Features
from normlens.kernels.outlier_moments import feature_kurtosis
from normlens.kernels.outlier_statistics import GROUPS, Statistics
from normlens.kernels.outlier_views import Basis, View
from normlens.kernels.token_strings import token_string

Rows = list[dict[str, Any]]


def tables(found: Statistics) -> Mapping[str, pd.DataFrame]:
    """Every table of the declaration."""
    return {
        "layers": pd.DataFrame(_layers(found)),
        "massive": pd.DataFrame(_massive(found)),
        "massive_positions": pd.DataFrame(_positions(found)),
        "kurtosis": pd.DataFrame(_kurtosis(found)),
        "dimensions": pd.DataFrame(_dimensions(found)),
        "profile": pd.DataFrame(_profile(found)),
        "features": pd.DataFrame(_features(found)),
        "feature_layers": pd.DataFrame(_feature_layers(found)),
    }


def _status(n: int, overflow: int = 0) -> str:
    return "overflow" if overflow else "ok" if n else "no_data"


def _point(view: View) -> dict[str, Any]:
    return {"point": view.point, "depth": view.depth}


def _layers(found: Statistics) -> Rows:
    rows: Rows = []
    tokenizer = found.context.lens.tokenizer
    for i, view in enumerate(found.points):
        median = float(found.tensor("median")[i] / found.tensor("sequences")[i])
        for g, group in enumerate(GROUPS):
            n = int(found.n[g, i])
            top = found.tensor(f"largest.{g}.{i}")
            value, dimension, position, token = top[0, 2:].tolist() if n else [math.nan] * 4
            text = token_string(tokenizer, int(token)) if n and tokenizer is not None else ""
            rows.append(
                {
                    **_point(view),
                    "group": group,
                    "n": n,
                    "largest": value,
                    "dimension": int(dimension) if n else pd.NA,
                    "position": int(position) if n else pd.NA,
                    "token": text,
                    "median": median if n else math.nan,
                    "ratio": float(found.tensor("ratio")[g, i]) if n else math.nan,
                    "massive": int(found.tensor("massive")[g, i].sum()),
                    "q50_norm": log_quantile(found.tensor("histogram")[g, i], 0.5),
                    "mean_norm": float(found.tensor("norm")[g, i]) / n if n else math.nan,
                    "status": _status(n, int(found.overflow[g, i])),
                }
            )
    return rows


def _massive(found: Statistics) -> Rows:
    rows: Rows = []
    for g, group in enumerate(GROUPS):
        count = found.tensor("massive")[g]
        where = count.nonzero().tolist()
        for i, j in where:
            high, low = (float(found.tensor(f"massive_{end}")[g, i, j]) for end in ("high", "low"))
            rows.append(
                {
                    **_point(found.points[i]),
                    "group": group,
                    "dimension": j,
                    "n": int(count[i, j]),
                    "largest": high if high >= -low else low,
                    "ratio": float(found.tensor("massive_ratio")[g, i, j]),
                }
            )
        if not where:
            none = {"point": "", "depth": pd.NA, "dimension": pd.NA}
            rows.append({**none, "group": group, "n": 0, "largest": math.nan, "ratio": math.nan})
    return rows


def _positions(found: Statistics) -> Rows:
    counts = found.tensor("positions")
    total = int(counts.sum())
    if total == 0:
        return [{"position": pd.NA, "n": 0, "share": math.nan}]
    order = torch.argsort(counts, descending=True, stable=True)
    kept = [int(p) for p in order[: found.context.parameters.top] if counts[p] > 0]
    return [{"position": p, "n": int(counts[p]), "share": float(counts[p]) / total} for p in kept]


def _kurtosis(found: Statistics) -> Rows:
    per_feature = feature_kurtosis(found.tensor("features"))
    count, total = found.tensor("replicates").unbind(1)  # [replicate group view]
    replicates = total / count
    rows: Rows = []
    for i, view in enumerate(found.views):
        for g, group in enumerate(GROUPS):
            n = int(found.tensor("n_kurtosis")[g, i])
            mean = float(found.tensor("kurtosis")[g, i]) / n if n else math.nan
            low, high = interval(replicates[:, g, i]) if n else (math.nan, math.nan)
            status = _status(n, int(found.tensor("overflow")[g, i]))
            rows.append(
                {
                    **_point(view),
                    "order": view.order,
                    "basis": view.basis.value,
                    "group": group,
                    "n": n,
                    "per_token": mean,
                    "per_token_low": low,
                    "per_token_high": high,
                    "excess": mean - 3,
                    "per_feature": float(per_feature[g, i]) if n else math.nan,
                    "status": "not_applicable" if view.missing else status,
                }
            )
    return rows


def _dimensions(found: Statistics) -> Rows:
    rows: Rows = []
    top = found.context.parameters.top
    for g, group in enumerate(GROUPS):
        n = int(found.n[g].max())
        if n == 0:
            rows.append(_no_dimension(group) | {"massive": 0})
            continue
        shares = found.shares[g]
        order = torch.argsort(shares, dim=-1, descending=True, stable=True)
        among = torch.zeros_like(shares)
        among.scatter_(-1, order[:, :top], 1.0)
        largest = found.tensor("largest_dimension")[g].double() / found.n[g][:, None]
        rows += [
            {
                "group": group,
                "dimension": j,
                "n": n,
                "mean_square_share": float(shares[:, j].mean()),
                "persistence_depths": float(among[:, j].mean()),
                "persistence_tokens": float(largest[:, j].mean()),
                "massive": int(found.tensor("massive")[g, :, j].sum()),
            }
            for j in found.top_dimensions(g)
        ]
    return rows


def _no_dimension(group: str) -> dict[str, Any]:
    measures = ("mean_square_share", "persistence_depths", "persistence_tokens")
    return {"group": group, "dimension": pd.NA, "n": 0, **dict.fromkeys(measures, math.nan)}


def _profile(found: Statistics) -> Rows:
    rows: Rows = []
    for g, group in enumerate(GROUPS):
        listed: list[int | None] = [*found.top_dimensions(g)] if int(found.n[g].max()) else [None]
        rows += [
            {
                **_point(view),
                "group": group,
                "dimension": pd.NA if j is None else j,
                "n": int(found.n[g, i]),
                "mean_square_share": (math.nan if j is None else float(found.shares[g, i, j])),
            }
            for i, view in enumerate(found.points)
            for j in listed
        ]
    return rows


def _features(found: Statistics) -> Rows:
    rows: Rows = []
    for basis in found.bases:
        for c, criterion in enumerate(CRITERIA):
            for g, group in enumerate(GROUPS):
                shared = {"basis": basis.value, "criterion": criterion, "group": group}
                features = found.features(basis, c, g)
                rows += [shared | row for row in _of_criterion(features, found)]
    return rows


def _of_criterion(features: Features | None, found: Statistics) -> Rows:
    none = {"dimension": pd.NA, "outlier": False, "layer_share": math.nan, "token_share": math.nan}
    if features is None:
        return [none | {"n": 0, "status": "not_applicable"}]
    if features.n == 0:
        return [none | {"n": 0, "status": "no_data"}]
    listed = features.ranked(found.context.parameters.top)
    if not listed:
        return [none | {"n": features.n, "layer_share": 0.0, "token_share": 0.0, "status": "ok"}]
    return [
        {
            "dimension": j,
            "outlier": bool(features.outlier[j]),
            "n": features.n,
            "layer_share": float(features.layer_share[j]),
            "token_share": float(features.token_share[j]),
            "status": "ok",
        }
        for j in listed
    ]


def _feature_layers(found: Statistics) -> Rows:
    rest = GROUPS.index("rest")
    rows: Rows = []
    for c, criterion in enumerate(CRITERIA):
        features = found.features(Basis.NATIVE, c, rest)
        listed = features.ranked(found.context.parameters.top) if features is not None else []
        for i, view in enumerate(found.inputs):
            if view.basis is not Basis.NATIVE or view.input is None:
                continue
            n = int(found.tensor("n")[rest, found.views.index(view)])
            shared = {
                "point": view.point,
                "layer": view.input.layer,
                "feeds": view.input.feeds,
                "criterion": criterion,
                "n": n,
            }
            hits = found.tensor("hits")[c, rest, i]
            rows += [
                shared | {"dimension": j, "token_share": float(hits[j]) / n} for j in listed
            ] or [shared | {"dimension": pd.NA, "token_share": 0.0 if n else math.nan}]
    return rows
