"""Gradients of one sequence by plain autograd on a float64 deep copy."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Found:
    points: list[Tensor]
    gradients: list[Tensor]
    parameters: dict[str, Tensor]
    weights: dict[str, Tensor]


def of_sequence(model: nn.Module, blocks: str, ids: list[int]) -> Found:
    """Summed loss; gradients by every point and by every parameter."""
    twin = copy.deepcopy(model).double().requires_grad_(True)
    seen: list[Tensor] = []
    modules = list(twin.get_submodule(blocks).children())

    def keep(x: Any) -> None:
        seen.append(x)
        x.retain_grad()

    for module in modules:
        module.register_forward_pre_hook(
            lambda _m, a, k: keep(a[0] if a else k["hidden_states"]), with_kwargs=True
        )
    modules[-1].register_forward_hook(
        lambda _m, _a, out: keep(out[0] if isinstance(out, tuple) else out)
    )
    logits = twin(input_ids=torch.tensor([ids])).logits[0]
    loss = -sum(logits[i].log_softmax(-1)[ids[i + 1]] for i in range(len(ids) - 1))
    loss.backward()
    return Found(
        points=[x.detach()[0] for x in seen],
        gradients=[x.grad[0] for x in seen if x.grad is not None],
        parameters={n: p.grad for n, p in twin.named_parameters() if p.grad is not None},
        weights={n: p.detach() for n, p in twin.named_parameters()},
    )


def norm_jacobian(module: nn.Module, x: Tensor) -> Tensor:
    """Jacobian of a norm at one token, ``[out in]``, column by column of the identity."""
    return torch.autograd.functional.jacobian(copy.deepcopy(module).double(), x.double())
