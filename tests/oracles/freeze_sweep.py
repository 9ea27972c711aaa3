"""Freezing scales by replacing the modules, one sequence at a time, in float64."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class FrozenNorm(nn.Module):
    """A norm with one constant scale for position 0 and another for the rest."""

    def __init__(self, old: nn.Module, centred: bool, first: float, rest: float) -> None:
        super().__init__()
        self.weight = old.weight
        self.bias = old.bias if centred else None
        self.centred, self.first, self.rest = centred, first, rest

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        for position in range(x.shape[1]):
            token = x[:, position]
            if self.centred:
                token = token - token.mean(-1, keepdim=True)
            scale = self.first if position == 0 else self.rest
            out[:, position] = token / scale * self.weight
        return out if self.bias is None else out + self.bias


def mean_scales(
    model: nn.Module, path: str, centred: bool, eps: float, rows: list[list[int]]
) -> tuple[float, float]:
    """Mean scale of first tokens and of the rest at one norm, of the untouched model."""
    seen: list[Tensor] = []
    handle = model.get_submodule(path).register_forward_pre_hook(lambda _m, a: seen.append(a[0][0]))
    with torch.no_grad():
        for row in rows:
            model(input_ids=torch.tensor([row]), use_cache=False)
    handle.remove()
    first, rest = [], []
    for x in seen:
        for position, token in enumerate(x):
            mean = token.mean() if centred else 0.0
            scale = (((token - mean) ** 2).mean() + eps).sqrt().item()
            (first if position == 0 else rest).append(scale)
    return sum(first) / len(first), sum(rest) / len(rest)


def freeze(model: nn.Module, scales: dict[str, tuple[float, float]], centred: bool) -> nn.Module:
    """A float64 copy of ``model`` in which the norms at these paths are frozen."""
    frozen = copy.deepcopy(model).double()
    for path, (first, rest) in scales.items():
        old = frozen.get_submodule(path)
        frozen.set_submodule(path, FrozenNorm(old, centred, first, rest))
    return frozen


def losses(model: nn.Module, frozen: nn.Module, rows: list[list[int]]) -> dict[str, list[Tensor]]:
    """Per sequence the per-token loss of both models and ``KL(model || frozen)``."""
    out: dict[str, list[Tensor]] = {"intact": [], "frozen": [], "kl": []}
    for row in rows:
        ids = torch.tensor([row])
        target = ids[0, 1:, None]
        with torch.no_grad():
            p = model(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1)
            q = frozen(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1)
        out["intact"].append(-p.gather(1, target)[:, 0])
        out["frozen"].append(-q.gather(1, target)[:, 0])
        out["kl"].append((p.exp() * (p - q)).sum(-1))
    return out
