"""The statistics of a norm's scale, one token at a time, in float64."""

from __future__ import annotations

import math

import numpy as np


def scale(x: np.ndarray, kind: str, eps: float) -> float:
    """Denominator of one token: ``layer_norm``, ``rms_norm``, or a would-be one (eps 0)."""
    values = [float(v) for v in x]
    mean = sum(values) / len(values) if kind == "layer_norm" else 0.0
    return math.sqrt(sum((v - mean) ** 2 for v in values) / len(values) + eps)


def ones_share(x: np.ndarray) -> float:
    values = [float(v) for v in x]
    mean = sum(values) / len(values)
    return mean**2 / (sum(v * v for v in values) / len(values))


def summary(
    inputs: list[np.ndarray], kind: str, eps: float, group: str, weights: np.ndarray
) -> dict[str, float]:
    """All measures of one site and group.

    ``inputs`` holds one ``[token width]`` array per sequence, ``weights`` is
    ``[replicate sequence]``.
    """
    tokens = [list(x[:1]) if group == "first" else list(x[1:]) for x in inputs]
    per_sequence = [[scale(token, kind, eps) for token in sequence] for sequence in tokens]
    scales = [value for sequence in per_sequence for value in sequence]
    shares = [ones_share(token) for sequence in tokens for token in sequence]
    replicates = []
    for row in weights:
        repeated = [
            value
            for weight, sequence in zip(row, per_sequence, strict=True)
            for _ in range(int(weight))
            for value in sequence
        ]
        if repeated:
            replicates.append(np.std(repeated) / np.mean(repeated))
    low, high = np.quantile(replicates, [0.025, 0.975])
    return {
        "n": len(scales),
        "mean": float(np.mean(scales)),
        "sd": float(np.std(scales)),
        "spread": float(np.std(scales) / np.mean(scales)),
        "spread_low": float(low),
        "spread_high": float(high),
        "q05": float(np.quantile(scales, 0.05, method="inverted_cdf")),
        "q50": float(np.quantile(scales, 0.50, method="inverted_cdf")),
        "q95": float(np.quantile(scales, 0.95, method="inverted_cdf")),
        "minimum": min(scales),
        "maximum": max(scales),
        "ones_share": float(np.mean(shares)),
    }
