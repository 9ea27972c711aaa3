"""The residual stream of one sequence, by plain hooks, in float64, token by token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn


def stream(model: nn.Module, blocks: list[nn.Module], ids: list[int]) -> list[np.ndarray]:
    """The input of every block and the output of the last, ``[pos d_model]`` each."""
    seen: list[Any] = []
    handles = [
        b.register_forward_pre_hook(
            lambda _m, a, k: seen.append(a[0] if a else k["hidden_states"]), with_kwargs=True
        )
        for b in blocks
    ]
    handles.append(
        blocks[-1].register_forward_hook(
            lambda _m, _a, out: seen.append(out[0] if isinstance(out, tuple) else out)
        )
    )
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    for handle in handles:
        handle.remove()
    return [x[0].double().numpy().copy() for x in seen]


def outputs(model: nn.Module, modules: list[nn.Module], ids: list[int]) -> list[np.ndarray]:
    """The output of some modules, ``[pos d_model]`` each."""
    seen: list[Any] = []
    handles = [m.register_forward_hook(lambda _m, _a, out: seen.append(out)) for m in modules]
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    for handle in handles:
        handle.remove()
    return [x[0].double().numpy().copy() for x in seen]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(sum(x * y for x, y in zip(a, b, strict=True)) / (length(a) * length(b)))


def length(a: np.ndarray) -> float:
    return math.sqrt(sum(x * x for x in a))


def centred_cosine(a: np.ndarray, b: np.ndarray) -> float:
    return cosine(a - sum(a) / len(a), b - sum(b) / len(b))


def trimmed_cosine(a: np.ndarray, b: np.ndarray, count: int) -> float:
    kept = np.argsort(-(abs(a) + abs(b)))[count:]
    return cosine(a[kept], b[kept])


def angle(a: np.ndarray, b: np.ndarray) -> float:
    return math.acos(max(-1.0, min(1.0, cosine(a, b)))) / math.pi
