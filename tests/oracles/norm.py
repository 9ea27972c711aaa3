"""What a norm computes of one vector, number by number."""

from __future__ import annotations

import math
from collections.abc import Sequence


def scale(x: Sequence[float], *, centred: bool, eps: float) -> float:
    """Denominator of LayerNorm (``centred``) or RMSNorm."""
    mean = sum(x) / len(x) if centred else 0.0
    return math.sqrt(sum((value - mean) ** 2 for value in x) / len(x) + eps)


def norm(
    x: Sequence[float],
    gain: Sequence[float],
    bias: Sequence[float],
    *,
    centred: bool,
    eps: float,
) -> list[float]:
    """LayerNorm (``centred``) or RMSNorm of one vector."""
    mean = sum(x) / len(x) if centred else 0.0
    denominator = scale(x, centred=centred, eps=eps)
    return [(v - mean) / denominator * g + b for v, g, b in zip(x, gain, bias, strict=True)]


def dyt(
    x: Sequence[float], gain: Sequence[float], bias: Sequence[float], *, alpha: float
) -> list[float]:
    """Dynamic tanh of one vector."""
    return [math.tanh(alpha * v) * g + b for v, g, b in zip(x, gain, bias, strict=True)]
