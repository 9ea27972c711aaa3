"""From the statistics of ``gradients`` to its tables, headline numbers and check."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from normlens.capture.protocol import Finding
from normlens.capture.state import State
from normlens.capture.statistics import interval
from normlens.kernels.site_columns import site_columns
from normlens.models.lens import Lens, NormSite
from normlens.results import Check, Headline
from normlens.tolerances import for_dtype

GROUPS = ("first", "rest")
REST = GROUPS.index("rest")
PARTS = ("norms", "attention", "mlp")


@dataclass(frozen=True)
class Places:
    """Where gradients are looked at.

    Attributes:
        points: number of points of the residual stream.
        sites: norms on it.
        parts: parameter names by block and part; empty where they are not wanted.
    """

    points: int
    sites: tuple[NormSite, ...]
    parts: Mapping[tuple[int, str], tuple[str, ...]]

    @property
    def tables(self) -> tuple[tuple[str, int, int], ...]:
        """Name, number of measures and number of places of every kind of statistic."""
        return (
            ("points", 2, self.points),
            ("norms", 1, len(self.sites)),
            ("parts", 2, len(self.parts)),
        )


@dataclass(frozen=True)
class _Cell:
    """One row's numbers."""

    n: int
    means: list[float]
    intervals: list[tuple[float, float]]
    status: str


def summarise(state: State, places: Places, lens: Lens) -> Finding:
    """Tables, headline numbers, check and warnings of ``gradients``."""
    tables = {"points": _points(state, places), "norms": _norms(state, places)}
    if places.parts:
        tables["parameters"] = _parameters(state, places)
    headline, replicates = _headline(state, places)
    checks = (_check(state, lens),) if int(state.tensors["targets"]) else ()
    return Finding(tables, headline, checks, _warnings(state, lens), replicates)


def _cell(state: State, kind: str, group: int, place: int) -> _Cell:
    n = int(state.tensors[f"n.{kind}"][group, place])
    overflow = int(state.tensors[f"overflow.{kind}"][group, place])
    means = (state.tensors[f"sums.{kind}"][:, group, place] / n).tolist()
    boot = _replicates(state, kind)[:, :, group, place]
    intervals = [interval(column) if n else (math.nan, math.nan) for column in boot.unbind(1)]
    return _Cell(n, means, intervals, "no_data" if not n else "overflow" if overflow else "ok")


def _replicates(state: State, kind: str) -> Tensor:
    """Replicates of means, ``[replicate measure group place]``."""
    boot = state.tensors[f"replicates.{kind}"]
    return boot[:, 1:] / boot[:, :1]


def _points(state: State, places: Places) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for g, group in enumerate(GROUPS):
        last = _cell(state, "points", g, places.points - 1).means[0]
        for point in range(places.points):
            cell = _cell(state, "points", g, point)
            rows.append(
                {
                    "point": point,
                    "group": group,
                    "n": cell.n,
                    "gradient": cell.means[0],
                    "gradient_low": cell.intervals[0][0],
                    "gradient_high": cell.intervals[0][1],
                    "relative": cell.means[0] / last,
                    "sensitivity": cell.means[1],
                    "sensitivity_low": cell.intervals[1][0],
                    "sensitivity_high": cell.intervals[1][1],
                    "status": cell.status,
                }
            )
    return pd.DataFrame(rows)


def _norms(state: State, places: Places) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for g, group in enumerate(GROUPS):
        for i, site in enumerate(places.sites):
            cell = _cell(state, "norms", g, i)
            rows.append(
                {
                    **site_columns(site),
                    "group": group,
                    "n": cell.n,
                    "attenuation": cell.means[0],
                    "attenuation_low": cell.intervals[0][0],
                    "attenuation_high": cell.intervals[0][1],
                    "status": cell.status,
                }
            )
    return pd.DataFrame(rows)


def _parameters(state: State, places: Places) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for i, (layer, part) in enumerate(places.parts):
        cell = _cell(state, "parts", 0, i)
        n = int(state.tensors["targets"]) if cell.n else 0
        rows.append(
            {
                "layer": layer,
                "part": part,
                "n": n,
                "gradient": cell.means[0],
                "gradient_low": cell.intervals[0][0],
                "gradient_high": cell.intervals[0][1],
                "sensitivity": cell.means[1],
                "sensitivity_low": cell.intervals[1][0],
                "sensitivity_high": cell.intervals[1][1],
                "status": cell.status,
            }
        )
    return pd.DataFrame(rows)


def _headline(state: State, places: Places) -> tuple[tuple[Headline, ...], dict[str, Tensor]]:
    n = int(state.tensors["n.points"][REST].min())
    means = state.tensors["sums.points"] / state.tensors["n.points"]  # [measure group point]
    boot = _replicates(state, "points")
    found: list[Headline] = []
    replicates: dict[str, Tensor] = {}

    def ratio(name: str, doc: str, over: Tensor, under: Tensor, value: Tensor, n: int) -> None:
        low, high = interval(over / under) if n else (math.nan, math.nan)
        if n:
            replicates[name] = over / under
        found.append(Headline(name, float(value) if n else math.nan, "1", doc, n, low, high))

    after = "mean over tokens after the first that predict"
    for measure, name, what in (
        (0, "gradient_first_over_last", "gradient norm"),
        (1, "sensitivity_first_over_last", "residual norm times gradient norm"),
    ):
        ratio(
            name,
            f"{what} before block 0 over that after the last block, {after}",
            boot[:, measure, REST, 0],
            boot[:, measure, REST, -1],
            means[measure, REST, 0] / means[measure, REST, -1],
            n,
        )
    ratio(
        "gradient_first_token",
        "gradient norm before block 0 at first tokens over that at others that predict",
        boot[:, 0, 0, 0],
        boot[:, 0, REST, 0],
        means[0, 0, 0] / means[0, REST, 0],
        n,
    )
    return tuple(found), replicates


def _check(state: State, lens: Lens) -> Check:
    value = float(state.tensors["step_error"])
    tolerance = for_dtype("gradient_step", lens.placement.dtype)
    doc = (
        "relative difference between the measured and the predicted change of the first "
        "sequence's loss after a step along its gradient before block 0"
    )
    return Check("gradient_predicts_loss", value, tolerance, value <= tolerance, doc)


def _warnings(state: State, lens: Lens) -> tuple[str, ...]:
    counts = [state.tensors[f"overflow.{kind}"].flatten() for kind in ("points", "norms")]
    lost = int(torch.cat(counts).max())
    if not lost:
        return ()
    return (
        f"up to {lost} tokens have a gradient that is 0 or not finite in {lens.placement.dtype} "
        "and are left out where it is; open the model in float32",
    )
