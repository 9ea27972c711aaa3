"""Hover text of a map's cells, for the points that lie over them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

Z = re.compile(r"%\{z(?=[:}])")
_NOTHING = "no value<extra></extra>"


def hover_of_cells(trace: Any, maps: Sequence[Any]) -> str | list[str]:
    """The text of every cell: the map's own, or that of the map which has a value there.

    Args:
        trace: the map.
        maps: all maps on its axes; cells without a value are drawn by another one.
    """
    own = str(trace.hovertemplate or "%{z:.4g}<extra></extra>")
    values = np.asarray(trace.z, dtype=float)
    missing = ~np.isfinite(values).ravel()
    if not missing.any():
        return own
    texts = [own if not gone else _NOTHING for gone in missing]
    for other in maps:
        if other is trace or np.shape(other.z) != values.shape:
            continue
        there = np.isfinite(np.asarray(other.z, dtype=float)).ravel()
        for index in np.flatnonzero(missing & there):
            texts[index] = str(other.hovertemplate or _NOTHING)
    return texts


def flat_text(trace: Any) -> list[Any] | None:
    """Its texts cell by cell, where the hover text shows them."""
    if trace.text is None or "%{text" not in str(trace.hovertemplate):
        return None
    return cast(list[Any], np.asarray(trace.text, dtype=object).ravel().tolist())
