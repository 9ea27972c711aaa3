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


def compressed(x: Sequence[float], *, eps: float) -> list[float]:
    """CRMSNorm: the RMSNorm of the vector with minus its sum appended, without that element."""
    whole = [*x, -sum(x)]
    zeros = [0.0] * len(whole)
    ones = [1.0] * len(whole)
    return norm(whole, ones, zeros, centred=False, eps=eps)[:-1]


def unit_length(x: Sequence[float], *, eps: float) -> list[float]:
    """The vector over its Euclidean length, or over eps where that is larger."""
    length = math.sqrt(sum(v * v for v in x))
    return [v / max(length, eps) for v in x]


def absolute(x: Sequence[float], *, centred: bool, eps: float) -> list[float]:
    """L1 normalization, with the ratio of deviations of a Gaussian."""
    mean = sum(x) / len(x) if centred else 0.0
    deviation = sum(abs(v - mean) for v in x) / len(x)
    return [(v - mean) / (math.sqrt(math.pi / 2) * deviation + eps) for v in x]


def inverse_square_root(x: Sequence[float], *, constant: float) -> list[float]:
    """DyISRU: ``sqrt(C) x / sqrt(constant + x^2)`` with C the number of elements."""
    return [math.sqrt(len(x)) * v / math.sqrt(constant + v * v) for v in x]
