"""From the statistics of ``outliers`` to its tables, headline numbers and checks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normlens.capture.protocol import Context, Finding
from normlens.capture.state import State
from normlens.capture.statistics import interval, log_quantile
from normlens.kernels.outlier_inputs import unseen_mlps
from normlens.kernels.outlier_moments import feature_kurtosis
from normlens.kernels.outlier_statistics import GROUPS, Statistics
from normlens.kernels.outlier_tables import tables
from normlens.kernels.outlier_views import Basis
from normlens.results import Check, Headline
from normlens.tolerances import for_dtype

FIRST, REST = range(len(GROUPS))


def summarise(state: State, context: Context) -> Finding:
    """Tables, headline numbers, checks and warnings of ``outliers``."""
    found = Statistics(state, context)
    headline: list[Headline] = []
    replicates: dict[str, Tensor] = {}
    for basis in found.bases:
        if basis is Basis.GAIN_FREE:
            continue
        headline += _outlier_dimensions(found, basis)
        headline += _kurtosis(found, basis, replicates)
        if basis is Basis.NATIVE:
            headline += _massive(found)
    return Finding(tables(found), tuple(headline), _checks(found), _warnings(found), replicates)


def _suffix(basis: Basis) -> tuple[str, str]:
    return ("", "") if basis is Basis.NATIVE else ("_rotated", ", in a random orthonormal basis")


def _outlier_dimensions(found: Statistics, basis: Basis) -> list[Headline]:
    name, words = _suffix(basis)
    shown: list[Headline] = []
    for criterion, (key, doc) in enumerate(
        (
            ("outlier_dimensions", "dimensions that meet the criterion of LLM.int8"),
            ("outlier_dimensions_relative", "the same with the threshold in RMS of the token"),
        )
    ):
        features = found.features(basis, criterion, REST)
        n = 0 if features is None else features.n
        value = math.nan if features is None or n == 0 else float(features.outlier.sum())
        shown.append(Headline(key + name, value, "dimensions", doc + words, n))
    return shown


def _kurtosis(found: Statistics, basis: Basis, replicates: dict[str, Tensor]) -> list[Headline]:
    name, words = _suffix(basis)
    stream = [i for i, v in enumerate(found.views) if v.residual and v.basis is basis]
    last = stream[-1]
    n = int(found.tensor("n_kurtosis")[REST, last])
    per_token = f"kurtosis_per_token{name}"
    doc = "mean kurtosis over dimensions of the final residual, first tokens left out" + words
    if n == 0:
        why = found.views[last].missing or "no tokens"
        return [
            Headline(per_token, math.nan, "1", f"{doc}; {why}", 0),
            Headline(f"kurtosis_per_feature{name}", math.nan, "1", why + words, 0),
        ]
    count, total = found.tensor("replicates")[:, :, REST, last].unbind(1)
    replicates[per_token] = total / count
    low, high = interval(replicates[per_token])
    mean = float(found.tensor("kurtosis")[REST, last]) / n
    per_feature = feature_kurtosis(found.tensor("features")[REST, stream])
    at = int(per_feature.nan_to_num(-math.inf).argmax())
    return [
        Headline(per_token, mean, "1", doc, n, low, high),
        Headline(
            f"kurtosis_per_feature{name}",
            float(per_feature[at]),
            "1",
            f"largest per-feature kurtosis of the residual stream, at depth {at}{words}",
            int(found.tensor("n_kurtosis")[REST, stream[at]]),
        ),
    ]


def _massive(found: Statistics) -> list[Headline]:
    everything = int(found.n.sum(0).max())
    if everything == 0:
        return [
            Headline(name, math.nan, unit, "no tokens", 0)
            for name, unit in (
                ("massive_activations", "activations"),
                ("largest_ratio", "1"),
                ("first_token_norm", "1"),
            )
        ]
    count = float(found.tensor("massive").sum())
    dimensions = found.tensor("massive").sum((0, 1)).nonzero().flatten().tolist()
    where = f", in dimensions {_listed(dimensions)}" if dimensions else ""
    ratio = found.tensor("ratio").amax(0)
    at = int(ratio.argmax())
    return [
        Headline(
            "massive_activations",
            count,
            "activations",
            f"massive activations at all depths{where}",
            everything,
        ),
        Headline(
            "largest_ratio",
            float(ratio[at]),
            "1",
            f"largest magnitude over the median of its sequence, at depth {at}",
            everything,
        ),
        _first_token(found),
    ]


def _listed(dimensions: list[int], most: int = 6) -> str:
    shown = ", ".join(map(str, dimensions[:most]))
    return shown + (f" and {len(dimensions) - most} more" if len(dimensions) > most else "")


def _first_token(found: Statistics) -> Headline:
    name = "first_token_norm"
    n = int(found.n[FIRST].max())
    if n == 0 or int(found.n[REST].max()) == 0:
        return Headline(name, math.nan, "1", "no tokens to compare", 0)
    histogram = found.tensor("histogram")
    ratios = [
        log_quantile(histogram[FIRST, i], 0.5) / log_quantile(histogram[REST, i], 0.5)
        for i in range(len(found.points))
    ]
    at = max(range(len(ratios)), key=lambda i: ratios[i])
    doc = f"median norm of first tokens over that of all others, largest, at depth {at}"
    return Headline(name, ratios[at], "1", doc, n)


def _checks(found: Statistics) -> tuple[Check, ...]:
    tolerance = for_dtype("sum_of_squares", found.context.lens.placement.dtype)
    by_dimension = found.tensor("features").sum(-1)
    by_token = found.tensor("energy")
    gap = (by_dimension - by_token).abs() / by_token.clamp_min(torch.finfo(torch.float64).tiny)
    gap = torch.where(by_token > 0, gap, 0.0)
    worst = float(gap.max())
    checks = [
        Check(
            "sums_of_squares_agree",
            worst,
            tolerance,
            worst <= tolerance,
            "relative difference between the sum of squares over dimensions and over tokens",
        )
    ]
    turned = float(found.tensor("turned"))
    if turned >= 0:
        doc = "largest relative change of a token's sum of squares by the rotation"
        checks.append(Check("rotation_keeps_norms", turned, tolerance, turned <= tolerance, doc))
    return tuple(checks)


def _warnings(found: Statistics) -> tuple[str, ...]:
    lens = found.context.lens
    said: list[str] = []
    lost = found.tensor("overflow").sum(0)
    where = dict.fromkeys(
        f"{view.point} ({int(k)})" for view, k in zip(found.views, lost, strict=True) if k
    )
    if where:
        said.append(
            f"some tokens are not finite in {lens.placement.dtype} and left out: "
            f"{', '.join(where)}; open the model in float32"
        )
    unseen = unseen_mlps(lens)
    if unseen:
        said.append(
            f"the MLPs of {unseen} blocks read the residual stream inside the block, which the "
            "pass does not see: outlier features are those at the inputs of attention"
        )
    missing = list(dict.fromkeys(view.missing for view in found.views if view.missing))
    if missing:
        more = f" and {len(missing) - 1} more alike" if len(missing) > 1 else ""
        where = "in the residual stream" if found.points_missing else "at some norms"
        said.append(f"no rotation control {where}: {missing[0]}{more}")
    return tuple(said)
