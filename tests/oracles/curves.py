"""Input-output curves by their definitions: every element by itself, fits on raw points."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import curve_fit
from torch import nn


def norm_inputs(model: nn.Module, module: nn.Module, ids: list[int]) -> np.ndarray:
    """What a norm reads, ``[pos ... width]``, float64."""
    seen: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model(torch.tensor([ids]), use_cache=False)
    handle.remove()
    return seen[0][0].double().numpy()


def layer_norm(x: np.ndarray, eps: float) -> np.ndarray:
    """``(x - mean) / sqrt(var + eps)``."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)


def rms_norm(x: np.ndarray, eps: float) -> np.ndarray:
    """``x / sqrt(mean x^2 + eps)``."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def tanh(x: np.ndarray, s: float, alpha: float) -> np.ndarray:
    """``s tanh(alpha x)``."""
    return s * np.tanh(alpha * x)


def eln(x: np.ndarray, s: float, beta: float) -> np.ndarray:
    """``s x / sqrt(beta + x^2)``."""
    return s * x / np.sqrt(beta + x**2)


def line(x: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    """``slope x + intercept``."""
    return slope * x + intercept


def fit_tanh(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``s, alpha`` by least squares on the points."""
    return curve_fit(tanh, x, y, p0=(np.abs(y).max(), 1 / x.std()), xtol=1e-12, ftol=1e-12)[0]


def fit_eln(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``s, beta`` by least squares on the points."""
    start = (np.abs(y).max(), x.var())
    return curve_fit(eln, x, y, p0=start, xtol=1e-12, ftol=1e-12)[0]


def fit_line(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``slope, intercept`` by least squares on the points."""
    return np.polyfit(x, y, 1)


def r2(y: np.ndarray, predicted: np.ndarray) -> float:
    """Share of the variance explained."""
    return 1 - float(((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def rms(values: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt((values**2).mean()))
