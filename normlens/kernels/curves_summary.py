"""From the statistics of ``curves`` to its tables, headline numbers and checks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from normlens.capture.protocol import Context, Finding
from normlens.capture.state import State
from normlens.capture.statistics import interval, log_quantile
from normlens.kernels.curve_bins import MAGNITUDES, Curve
from normlens.kernels.curve_fits import Fits, fit, square_floor, square_total
from normlens.kernels.curve_shape import (
    RANGES,
    bend,
    middle_slope,
    range_ends,
    ranges_of,
    straight_extent,
)
from normlens.kernels.curves_headline import headline
from normlens.kernels.site_columns import site_columns
from normlens.models.lens import Lens, NormSite
from normlens.norms.spec import NormKind
from normlens.results import Check

GROUPS = ("first", "rest")
ROW_BINS = 2
"""Bins of ``|x|`` that share a row of the curve: a quarter of an octave."""
CENTRE = 1 / 16
"""Elements below this share of the RMS share one row per sign."""

Row = dict[str, object]


def known_sites(lens: Lens) -> tuple[NormSite, ...]:
    """Sites whose map is known; of an OPAQUE one no output before gain and bias is."""
    return tuple(site for site in lens.sites if site.spec.kind is not NormKind.OPAQUE)


def summarise(state: State, context: Context) -> Finding:
    """Tables, headline numbers, checks and warnings of ``curves``."""
    lens = context.lens
    index = {site.label: i for i, site in enumerate(known_sites(lens))}
    fits, tails, curves, slopes = [], [], [], []
    for site in lens.sites:
        for g, group in enumerate(GROUPS):
            named = {**site_columns(site), "group": group}
            place = (index[site.label], g) if site.label in index else None
            lost = 0 if place is None else int(state.tensors["overflow"][place])
            curve = _curve(state, place)
            status = "not_applicable" if place is None else "overflow" if lost else "ok"
            empty = "not_applicable" if place is None else "no_data"
            fitted = fit(curve) if curve.n else None
            slope = middle_slope(curve) if curve.n else math.nan
            here = _fit_row(curve, fitted, slope, context.parameters.deviation)
            fits.append({**named, **here, "status": status if curve.n else empty})
            for row in _tail_rows(curve, fitted, slope):
                tails.append({**named, **row, "status": status if row["n"] else empty})
            curves += [{**named, **row, "status": status} for row in _curve_rows(curve)]
            slopes.append({**named, **_slope_row(state, place, has_tokens=curve.n > 0)})
    tables = {
        "fits": pd.DataFrame(fits),
        "tails": pd.DataFrame(tails),
        "curves": pd.DataFrame(curves),
        "slopes": pd.DataFrame(slopes),
    }
    numbers, replicates = headline(tables, _spreads(state))
    return Finding(tables, numbers, _checks(lens), _warnings(state, lens), replicates)


def _curve(state: State, place: tuple[int, int] | None) -> Curve:
    sums = state.tensors["curves"]
    return Curve(torch.zeros_like(sums[0, 0]) if place is None else sums[place])


def _fit_row(curve: Curve, fits: Fits | None, slope: float, deviation: float) -> Row:
    if fits is None:
        names = (
            "rms", "slope", "curve_r2", "line_r2", "line_slope", "line_intercept", "tanh_r2",
            "tanh_s", "tanh_alpha", "eln_r2", "eln_s", "eln_beta", "straight_to", "straight_share",
        )  # fmt: skip
        flags = {"tanh_straight": False, "eln_straight": False}
        return {"n": 0, **dict.fromkeys(names, math.nan), **flags}
    r2 = _ShareExplained(square_total(curve))
    extent = straight_extent(curve, slope, deviation)
    return {
        "n": curve.n,
        "rms": math.sqrt(curve.totals["xx"] / curve.n),
        "slope": slope,
        "curve_r2": r2(square_floor(curve)),
        "line_r2": r2(fits.line.square_error(curve)),
        "line_slope": fits.line.slope,
        "line_intercept": fits.line.intercept,
        "tanh_r2": r2(fits.tanh.square_error(curve)),
        "tanh_s": fits.tanh.s,
        "tanh_alpha": fits.tanh.alpha,
        "tanh_straight": fits.tanh.straight,
        "eln_r2": r2(fits.eln.square_error(curve)),
        "eln_s": fits.eln.s,
        "eln_beta": fits.eln.beta,
        "eln_straight": fits.eln.straight,
        "straight_to": extent.to,
        "straight_share": extent.share,
    }


class _ShareExplained:
    def __init__(self, total: float) -> None:
        self.total = total

    def __call__(self, error: float) -> float:
        return 1 - error / self.total if self.total > 0 else math.nan


def _tail_rows(curve: Curve, fits: Fits | None, slope: float) -> Iterator[Row]:
    where = ranges_of(curve)
    for i, name in enumerate(RANGES):
        part = curve.within(where == i)
        if fits is not None and not part.n:
            continue
        if fits is None:
            names = ("from_x", "to_x", "rms_xhat", "bend", "floor")
            errors = ("tanh_error", "eln_error", "line_error")
            yield {"range": name, "n": 0, **dict.fromkeys((*names, *errors), math.nan)}
            continue
        start, end = range_ends(curve, where == i)
        yield {
            "range": name,
            "n": part.n,
            "from_x": start,
            "to_x": end,
            "rms_xhat": math.sqrt(part.totals["yy"] / part.n),
            "bend": bend(part, slope),
            **{f"{fit}_error": error for fit, error in fits.errors(part).items()},
            "floor": math.sqrt(square_floor(part) / part.n),
        }


def _curve_rows(curve: Curve) -> Iterator[Row]:
    if not curve.n:
        return
    counts, magnitudes = curve.counts, curve.magnitudes
    typical = np.divide(magnitudes, counts, out=np.zeros(MAGNITUDES), where=counts > 0)
    small = CENTRE * math.sqrt(curve.totals["xx"] / curve.n)
    beyond = int(np.flatnonzero((counts > 0) & (typical < small)).max(initial=-1)) + 1
    rows = np.maximum(np.arange(MAGNITUDES) - beyond, -1) // ROW_BINS + 1
    sums = torch.zeros(2, int(rows.max()) + 1, curve.sums.shape[-1], dtype=torch.float64)
    sums.index_add_(1, torch.from_numpy(rows), curve.sums)
    bins = Curve(sums).bins
    for n, x, y, yy in zip(bins["n"], bins["x"], bins["y"], bins["yy"], strict=True):
        mean = float(y / n)
        sd = math.sqrt(max(float(yy / n) - mean**2, 0.0))
        yield {"n": int(n), "x": float(x / n), "xhat": mean, "sd": sd}


def _slope_row(state: State, place: tuple[int, int] | None, *, has_tokens: bool) -> Row:
    n = 0 if place is None else int(state.tensors["slopes"][place][0])
    if place is None or not n:
        names = ("mean", "spread", "spread_low", "spread_high", "q05", "q50", "q95")
        status = "not_applicable" if place is None or has_tokens else "no_data"
        return {"n": 0, **dict.fromkeys(names, math.nan), "status": status}
    mean, spread = _mean_and_spread(state.tensors["slopes"][place])
    _, boot = _mean_and_spread(state.tensors["replicates"][:, *place])
    low, high = interval(boot)
    histogram = state.tensors["histogram"][place]
    return {
        "n": n,
        "mean": float(mean),
        "spread": float(spread),
        "spread_low": low,
        "spread_high": high,
        **{f"q{q:02d}": log_quantile(histogram, q / 100) for q in (5, 50, 95)},
        "status": "overflow" if int(state.tensors["overflow"][place]) else "ok",
    }


def _mean_and_spread(powers: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and ``sd / mean`` from count, sum and sum of squares on the last axis."""
    count, total, square = powers.unbind(-1)
    mean = total / count
    return mean, (square / count - mean.square()).clamp_min(0).sqrt() / mean


def _spreads(state: State) -> Tensor:
    """Replicates of the spread over tokens after the first, ``[replicate site]``."""
    return _mean_and_spread(state.tensors["replicates"][:, :, GROUPS.index("rest")])[1]


def _checks(lens: Lens) -> tuple[Check, ...]:
    known = {site.label for site in known_sites(lens)}
    shares = [c.residual / c.tolerance for c in lens.verification if c.label in known]
    worst = max(shares, default=math.nan)
    doc = (
        "largest residual of a norm's output recomputed from its kind, eps, gain and bias, as a "
        "share of its tolerance"
    )
    return (Check("norms_recomputed", worst, 1.0, worst <= 1.0, doc),)


def _warnings(state: State, lens: Lens) -> tuple[str, ...]:
    lost = state.tensors["overflow"].sum(-1).tolist()
    labels = [site.label for site in known_sites(lens)]
    where = [f"{label} ({k})" for label, k in zip(labels, lost, strict=True) if k]
    if not where:
        return ()
    return (
        f"some tokens have an input that is not finite in {lens.placement.dtype} and are left "
        f"out: {', '.join(where)}; open the model in float32",
    )
