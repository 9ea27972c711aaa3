"""Norm sites on a numeric axis that models of different depth share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from normlens.figures.frame import BY_LAYER
from normlens.figures.tokens import Ticks, escape

MOST_TICKS = 26


@dataclass(frozen=True)
class SiteAxis:
    """Positions of site labels, by layer and order of execution."""

    positions: dict[str, int]
    same_sites: bool

    @property
    def note(self) -> str:
        """Says how models with different sites are aligned; empty when they do not differ."""
        return "" if self.same_sites else BY_LAYER

    def x(self, labels: pd.Series) -> list[int]:
        """Positions of labels."""
        return [self.positions[label] for label in labels]

    def spaced(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows indexed by position, with empty ones where a site is missing in between.

        A line drawn through them breaks there instead of running past sites it has not.
        """
        placed = frame.set_index(pd.Index(self.x(frame["site"])))
        return placed.reindex(range(int(placed.index.min()), int(placed.index.max()) + 1))

    def axis(self) -> dict[str, Any]:
        """Plotly axis properties; every k-th site is labelled where there are many."""
        step = max(1, math.ceil(len(self.positions) / MOST_TICKS))
        labelled = [(label, x) for label, x in self.positions.items() if x % step == 0]
        ticks = Ticks([x for _, x in labelled], [escape(label) for label, _ in labelled])
        return ticks.axis() | {
            "range": [-0.7, len(self.positions) - 0.3],
            "tickangle": -60,
            "zeroline": False,
        }


def site_axis(frames: Sequence[pd.DataFrame]) -> SiteAxis:
    """The axis for tables with ``site``, ``layer`` and ``order`` columns, one per model."""
    keys: dict[str, tuple[float, int]] = {}
    for frame in frames:
        first_in_blocks = frame.loc[frame["layer"].notna(), "order"].min()
        for site, layer, order in zip(frame["site"], frame["layer"], frame["order"], strict=True):
            outside = -math.inf if order < first_in_blocks else math.inf
            keys.setdefault(str(site), (outside if pd.isna(layer) else float(layer), int(order)))
    ordered = sorted(keys, key=lambda site: (*keys[site], site))
    sites = [set(frame["site"]) for frame in frames]
    return SiteAxis(
        positions={site: x for x, site in enumerate(ordered)},
        same_sites=all(found == sites[0] for found in sites),
    )
