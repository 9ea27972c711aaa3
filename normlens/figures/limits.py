"""Colour limits that one outlier cannot set, and a symmetric log axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

PERCENTILE = 99.5


@dataclass(frozen=True)
class Limits:
    """A colour range, and how many of the finite values lie outside it."""

    low: float
    high: float
    clipped: int

    @property
    def note(self) -> str:
        """The clip count in words; empty when nothing is clipped."""
        if not self.clipped:
            return ""
        cells = "cell lies" if self.clipped == 1 else "cells lie"
        return f"{self.clipped} {cells} beyond the colour range ({PERCENTILE} % of values)"


def robust_limits(values: ArrayLike, *, signed: bool) -> Limits:
    """Limits at the 99.5th percentile of the absolute values.

    Args:
        values: any shape; non-finite entries are left out.
        signed: symmetric around 0 when true, from 0 upwards otherwise.
    """
    finite = np.asarray(values, dtype=float).ravel()
    finite = finite[np.isfinite(finite)]
    if finite.size == 0:
        return Limits(-1.0 if signed else 0.0, 1.0, 0)
    magnitudes = np.abs(finite) if signed else finite
    high = float(np.percentile(magnitudes, PERCENTILE))
    if high <= 0:
        high = float(magnitudes.max()) or 1.0
    clipped = int((magnitudes > high * (1 + 1e-9)).sum())
    return Limits(-high if signed else 0.0, high, clipped)


@dataclass(frozen=True)
class SymmetricLog:
    """An axis that is linear below ``linear`` and logarithmic above, in both directions.

    ``position(v) = asinh(v / (2 * linear)) / ln(10)``, so a decade is one unit far from 0.
    """

    linear: float

    def position(self, values: ArrayLike) -> NDArray[np.float64]:
        """Where values go on the axis."""
        return np.arcsinh(np.asarray(values, dtype=float) / (2 * self.linear)) / math.log(10)

    def axis(self, values: Sequence[float]) -> dict[str, Any]:
        """Plotly axis properties with two ticks per decade over the range of ``values``."""
        finite = [v for v in values if math.isfinite(v)] or [0.0]
        ticks = [0.0]
        for sign, reach in ((1, max(finite)), (-1, -min(finite))):
            power = 0
            while reach > 0 and self.linear * 10.0 ** (power - 1) < reach:
                ticks += [sign * self.linear * 10.0**power, sign * 3 * self.linear * 10.0**power]
                power += 1
        ticks.sort()
        return {
            "tickmode": "array",
            "tickvals": self.position(ticks).tolist(),
            "ticktext": ["0" if t == 0 else f"{t:.4g}".replace("-", "−") for t in ticks],
        }
