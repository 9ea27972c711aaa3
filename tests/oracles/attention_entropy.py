"""Attention entropy and sinks from attention weights, one query at a time, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def entropy(weights: Sequence[float]) -> float:
    """Shannon entropy in nats; exact zeros contribute nothing."""
    return -sum(w * math.log(w) for w in weights if w > 0)


def query(weights: Sequence[float], visible: Sequence[bool]) -> dict[str, float]:
    """What one query comes to; ``weights`` over all keys, the first of the sequence first."""
    total, seen = entropy(weights), sum(visible)
    first = weights[0]
    return {
        "n": seen,
        "entropy": total,
        "ceiling": math.log(seen),
        "first_mass": first,
        "sink_entropy": entropy([first, 1 - first]),
    }


def head(
    weights: Sequence[np.ndarray],
    visible: Sequence[np.ndarray],
    replicates: np.ndarray,
    group: str = "rest",
) -> dict[str, float]:
    """All measures of one head.

    ``weights`` and ``visible`` hold one ``[query key]`` array per sequence, ``replicates`` is
    ``[replicate sequence]``.
    """
    per_sequence = [
        [query(list(map(float, w)), list(v)) for w, v in zip(ws, vs, strict=True)]
        for ws, vs in zip(weights, visible, strict=True)
    ]
    chosen = [
        [q for i, q in enumerate(qs) if q["n"] >= 2 and (i == 0) == (group == "first")]
        for qs in per_sequence
    ]
    counted = [q for qs in chosen for q in qs]
    every = [q for qs in per_sequence for q in qs]
    boot = []
    for row in replicates:
        drawn = [q for k, qs in zip(row, chosen, strict=True) for _ in range(int(k)) for q in qs]
        if drawn:
            boot.append(np.mean([q["entropy"] / q["ceiling"] for q in drawn]))
    low, high = np.quantile(boot, [0.025, 0.975])
    sink = float(np.mean([q["sink_entropy"] for q in counted]))
    whole = float(np.mean([q["entropy"] for q in counted]))
    return {
        "n": len(counted),
        "normalised": float(np.mean([q["entropy"] / q["ceiling"] for q in counted])),
        "normalised_low": float(low),
        "normalised_high": float(high),
        "entropy": whole,
        "ceiling": float(np.mean([q["ceiling"] for q in counted])),
        "entropy_all": float(np.mean([q["entropy"] for q in every])),
        "ceiling_all": float(np.mean([q["ceiling"] for q in every])),
        "first_mass": float(np.mean([q["first_mass"] for q in counted])),
        "sink_entropy": sink,
        "rest_entropy": whole - sink,
    }


def sink(weights: Sequence[np.ndarray], positions: int, threshold: float) -> dict[str, float]:
    """Share of long enough sequences whose first key gets more than the threshold."""
    masses = [sum(float(w[i][0]) for i in range(positions)) / positions
              for w in weights if len(w) >= positions]  # fmt: skip
    return {
        "n": len(masses),
        "left_out": len(weights) - len(masses),
        "rate": sum(m > threshold for m in masses) / len(masses),
        "mass": float(np.mean(masses)),
    }


def logits(scores: Sequence[np.ndarray]) -> dict[str, float]:
    """Moments of a causal head's logits over visible pairs, first queries left out."""
    pairs = [float(s[i][j]) for s in scores for i in range(1, len(s)) for j in range(i + 1)]
    return {
        "n": len(pairs),
        "mean": float(np.mean(pairs)),
        "sd": float(np.std(pairs)),
        "maximum": max(pairs),
    }


def vectors(queries: Sequence[np.ndarray], keys: Sequence[np.ndarray]) -> dict[str, float]:
    """Norms and mean cosine of a causal head's queries and keys, first queries left out."""
    norm = np.linalg.norm
    cosines = [
        float(q[i] @ k[j] / norm(q[i]) / norm(k[j]))
        for q, k in zip(queries, keys, strict=True)
        for i in range(1, len(q))
        for j in range(i + 1)
    ]
    return {
        "n": sum(len(q) - 1 for q in queries),
        "query_norm": float(np.mean([norm(x) for q in queries for x in q[1:]])),
        "key_norm": float(np.mean([norm(x) for k in keys for x in k[1:]])),
        "cosine": float(np.mean(cosines)),
    }
