"""By what each kind of norm divides a token, and freezing it, from the formulas alone."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn


def scale(token: list[float], kind: str, *, eps: float, centred: bool) -> float:
    """The denominator of one token."""
    mean = sum(token) / len(token) if centred else 0.0
    x = [value - mean for value in token]
    squares = sum(value * value for value in x)
    if kind == "crms_norm":
        return math.sqrt((squares + sum(x) ** 2) / (len(x) + 1) + eps)
    if kind in ("scale_norm", "l2_norm"):
        return max(math.sqrt(squares), eps)
    if kind == "l1_norm":
        return math.sqrt(math.pi / 2) * sum(abs(value) for value in x) / len(x) + eps
    assert kind in ("layer_norm", "rms_norm", "simple_rms_norm")
    return math.sqrt(squares / len(x) + eps)


def scales(
    model: nn.Module, path: str, rows: list[list[int]], kind: str, *, eps: float, centred: bool
) -> tuple[list[float], list[float]]:
    """Scales of first tokens and of all others at one norm."""
    seen: list[Tensor] = []
    module = model.get_submodule(path)
    handle = module.register_forward_pre_hook(lambda _m, a: seen.append(a[0][0]))
    with torch.no_grad():
        for row in rows:
            model(input_ids=torch.tensor([row]), use_cache=False)
    handle.remove()
    found = [[scale(t, kind, eps=eps, centred=centred) for t in x.tolist()] for x in seen]
    return [s[0] for s in found], [value for s in found for value in s[1:]]


class Frozen(nn.Module):
    """``factor * (weight * (x - mean) / s + bias)``, s for position 0 and another for the rest."""

    def __init__(
        self, old: nn.Module, factor: float, centred: bool, first: float, rest: float
    ) -> None:
        super().__init__()
        parameters = {name.split(".")[-1]: p for name, p in old.named_parameters()}
        self.weight, self.bias = parameters.get("weight"), parameters.get("bias")
        self.factor, self.centred, self.first, self.rest = factor, centred, first, rest

    def forward(self, x: Tensor) -> Tensor:
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        divisor = torch.full((x.shape[1], 1), self.rest, dtype=x.dtype)
        divisor[0] = self.first
        y = x / divisor
        y = y if self.weight is None else y * self.weight
        return self.factor * (y if self.bias is None else y + self.bias)


def freeze(
    model: nn.Module, scales: dict[str, tuple[float, float]], *, factor: float, centred: bool
) -> nn.Module:
    """A copy in which the norms at these paths divide by constants."""
    frozen = copy.deepcopy(model)
    for path, (first, rest) in scales.items():
        old = frozen.get_submodule(path)
        frozen.set_submodule(path, Frozen(old, factor, centred, first, rest))
    return frozen
