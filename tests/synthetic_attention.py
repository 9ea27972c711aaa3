"""Plausible tables of ``attention-entropy``: overload without norms, sinks with them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from normlens.results import Headline

if TYPE_CHECKING:
    from tests.synthetic_results import Model

Rows = list[dict[str, Any]]
QUARTERS = ("0-25 %", "25-50 %", "50-75 %", "75-100 %")
POSITIONS, SEQUENCES, SHORT = 64, 120, 6
TOKENS = SEQUENCES * (POSITIONS - 1)
CEILING = math.lgamma(POSITIONS + 1) / (POSITIONS - 1)


def tables(model: Model, draw: np.random.Generator) -> dict[str, Rows]:
    """The tables of one model."""
    heads, sinks, logits, vectors = Rows(), Rows(), Rows(), Rows()
    for layer in range(model.layers):
        for head in range(model.heads):
            here = {"layer": layer, "head": head}
            live = model.kind != "scale_free"
            share = float(draw.uniform(0.2, 0.9) if live else draw.uniform(0.6, 0.99))
            mass = float(draw.uniform(0.1, 0.8) if live else draw.uniform(0.0, 0.4))
            heads.append({**here, **_head(share, mass)})
            rate = float(np.clip(mass * 1.3 - 0.1, 0, 1))
            sinks.append({**here, **_sink(rate, mass)})
            logits.append(
                {**here, "group": "rest", "n": TOKENS * 32, "mean": 0.3, "sd": 2.0, "maximum": 9.0}
            )
            norms = {"query_norm": 4.1, "key_norm": 5.3, "cosine": 0.04}
            vectors.append({**here, "group": "rest", "n": TOKENS, **norms})
    return {
        "heads": heads,
        "bins": _bins(heads),
        "sinks": sinks,
        "logits": logits,
        "vectors": vectors,
    }


def headline(found: dict[str, Rows]) -> tuple[Headline, ...]:
    """Two of its headline numbers."""
    entropy = float(np.mean([row["normalised"] for row in found["heads"]]))
    rate = float(np.mean([row["rate"] for row in found["sinks"]]))
    count = SEQUENCES * len(found["sinks"])
    return (
        Headline(
            "normalised_entropy", entropy, "1", "mean", TOKENS, entropy - 0.02, entropy + 0.02
        ),
        Headline("sink_rate", rate, "1", "sinks", count, rate - 0.03, rate + 0.03),
    )


def _head(share: float, mass: float) -> dict[str, Any]:
    entropy = share * CEILING
    return {
        "group": "rest",
        "n": TOKENS,
        "normalised": share,
        "normalised_low": share - 0.02,
        "normalised_high": share + 0.02,
        "quarter": QUARTERS[int(4 * share)],
        "entropy": entropy,
        "ceiling": CEILING,
        "entropy_all": entropy * (POSITIONS - 1) / POSITIONS,
        "ceiling_all": CEILING * (POSITIONS - 1) / POSITIONS,
        "reproduction_quarter": QUARTERS[int(4 * share)],
        "first_mass": mass,
        "sink_entropy": 0.2 * entropy,
        "rest_entropy": 0.8 * entropy,
        "nan": 0,
    }


def _sink(rate: float, mass: float) -> dict[str, Any]:
    return {
        "n": SEQUENCES,
        "left_out": SHORT,
        "rate": rate,
        "rate_low": max(0.0, rate - 0.05),
        "rate_high": min(1.0, rate + 0.05),
        "mass": mass,
    }


def _bins(heads: Rows) -> Rows:
    rows = Rows()
    largest = max(row["entropy_all"] for row in heads)
    for mode in ("normalised", "reproduction"):
        values = [
            row["normalised"] if mode == "normalised" else row["entropy_all"] / largest
            for row in heads
        ]
        for k, name in enumerate(QUARTERS):
            share = sum(min(int(4 * v), 3) == k for v in values) / len(values)
            rows.append(
                {
                    "mode": mode,
                    "quarter": name,
                    "n": len(heads),
                    "share": share,
                    "share_low": max(0.0, share - 0.1),
                    "share_high": min(1.0, share + 0.1),
                }
            )
    return rows
