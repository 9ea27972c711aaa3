"""From sums per component to the tables and headlines of ``logit-attribution``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor

from normlens.capture.statistics import interval
from normlens.kernels.direct_effect import Component
from normlens.results import Headline


@dataclass(frozen=True)
class Estimate:
    """A number with its bootstrap replicates."""

    value: float
    replicates: Float[Tensor, " replicate"]


@dataclass(frozen=True)
class Measured:
    """What a mode measured, each tensor over components.

    Attributes:
        components: those that the model has.
        n: tokens behind each.
        dla, repair, error, effect: sums over tokens of DLA, DE - DLA, |DE - DLA| and |DE|.
        replicates: of each component's NMAE.
        groups: NMAE of the components of a type, by type.
    """

    components: tuple[Component, ...]
    n: Int[Tensor, " component"]
    dla: Float[Tensor, " component"]
    repair: Float[Tensor, " component"]
    error: Float[Tensor, " component"]
    effect: Float[Tensor, " component"]
    replicates: Float[Tensor, "replicate component"]
    groups: Mapping[str, Estimate]

    @property
    def nmae(self) -> Float[Tensor, " component"]:
        """mean|DLA - DE| / mean|DE|; NaN without tokens or for a component that writes nothing."""
        return self.error / self.effect


def members(components: Sequence[Component]) -> dict[str, list[int]]:
    """Indices of the components of each type, in order of appearance."""
    out: dict[str, list[int]] = {}
    for index, component in enumerate(components):
        out.setdefault(component.type, []).append(index)
    return out


def present(components: Sequence[Component], n: Int[Tensor, " component"]) -> list[int]:
    """Indices of the components that the model has.

    An embedding without a token while others have some is one that the model lacks.
    """
    nothing_seen = int(n.sum()) == 0
    return [i for i, c in enumerate(components) if nothing_seen or int(n[i])]


def component_table(measured: Measured) -> pd.DataFrame:
    """One row per component."""
    n = measured.n.double()
    intervals = [interval(column) for column in measured.replicates.unbind(1)]
    return pd.DataFrame(
        {
            "component": [c.name for c in measured.components],
            "layer": pd.array([c.layer for c in measured.components], dtype="Int64"),
            "head": pd.array([c.head for c in measured.components], dtype="Int64"),
            "type": [c.type for c in measured.components],
            "n": measured.n.tolist(),
            "dla": (measured.dla / n).tolist(),
            "direct_effect": ((measured.dla + measured.repair) / n).tolist(),
            "self_repair": (measured.repair / n).tolist(),
            "mean_abs_error": (measured.error / n).tolist(),
            "mean_abs_effect": (measured.effect / n).tolist(),
            "nmae": measured.nmae.tolist(),
            "nmae_low": [low for low, _ in intervals],
            "nmae_high": [high for _, high in intervals],
        }
    )


def group_table(measured: Measured) -> pd.DataFrame:
    """One row per type of component."""
    rows = []
    for kind, index in members(measured.components).items():
        estimate = measured.groups[kind]
        low, high = interval(estimate.replicates)
        smallest, largest = _range(measured.nmae[index])
        rows.append(
            {
                "type": kind,
                "components": len(index),
                "n": int(measured.n[index].max()),
                "nmae": estimate.value,
                "nmae_pooled": float(measured.error[index].sum() / measured.effect[index].sum()),
                "nmae_low": low,
                "nmae_high": high,
                "nmae_min": smallest,
                "nmae_max": largest,
            }
        )
    return pd.DataFrame(rows)


def head_headlines(measured: Measured, doc: str) -> tuple[Headline, ...]:
    """NMAE over heads with its interval, and the extreme heads; ``doc`` says how it is pooled."""
    index = members(measured.components)["head"]
    n = int(measured.n[index].max())
    estimate = measured.groups["head"]
    smallest, largest = _range(measured.nmae[index])
    return (
        Headline("nmae_heads", estimate.value, "1", doc, n, *interval(estimate.replicates)),
        Headline("nmae_heads_min", smallest, "1", "NMAE of the head with the smallest", n),
        Headline("nmae_heads_max", largest, "1", "NMAE of the head with the largest", n),
    )


def _range(values: Float[Tensor, " component"]) -> tuple[float, float]:
    known = values[~values.isnan()]
    if len(known) == 0:
        return math.nan, math.nan
    return float(known.min()), float(known.max())
