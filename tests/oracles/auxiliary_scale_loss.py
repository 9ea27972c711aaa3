"""The auxiliary scale loss of the removal recipe, written out position by position."""

from __future__ import annotations

import math

import numpy as np


def scales(x: np.ndarray, eps: float) -> np.ndarray:
    """Standard deviation over the last axis, eps inside the root."""
    out = np.zeros(x.shape[:2])
    for row in range(x.shape[0]):
        for position in range(x.shape[1]):
            token = x[row, position]
            mean = sum(token) / len(token)
            variance = sum((value - mean) ** 2 for value in token) / len(token)
            out[row, position] = math.sqrt(variance + eps)
    return out


def loss(x: np.ndarray, eps: float, weight: float) -> float:
    """``weight`` times the mean squared distance from the mean scale of positions 1 on."""
    found = scales(x, eps)
    rest = [found[row, position] for row in range(x.shape[0]) for position in range(1, x.shape[1])]
    target = sum(rest) / len(rest)
    squares = [(value - target) ** 2 for value in found.flatten()]
    return weight * sum(squares) / len(squares)


def gradient(x: np.ndarray, eps: float, weight: float) -> np.ndarray:
    """d loss / d x with the target held constant."""
    found = scales(x, eps)
    target = found[:, 1:].mean()
    centred = x - x.mean(-1, keepdims=True)
    outer = 2 * weight * (found - target) / found.size
    return outer[..., None] * centred / (x.shape[-1] * found[..., None])
