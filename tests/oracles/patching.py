"""Activation patching by hand: one activation at one position, one run each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def runs(
    model: nn.Module, modules: Sequence[tuple[nn.Module, str]], ids: Sequence[int]
) -> tuple[Tensor, list[Tensor]]:
    """Last logits, and the input or output of each module, ``[pos d]``."""
    seen: list[Tensor] = [torch.empty(0)] * len(modules)
    handles = [_attach(module, where, _keep(seen, i)) for i, (module, where) in enumerate(modules)]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1]
    for handle in handles:
        handle.remove()
    return logits, seen


def patched(
    model: nn.Module, module: nn.Module, where: str, ids: Sequence[int], clean: Tensor, at: int
) -> Tensor:
    """Last logits with the clean activation of one module at one position."""

    def replace(x: Tensor) -> Tensor:
        changed = x.clone()
        changed.view(-1, x.shape[-1])[at] = clean[at]
        return changed

    handle = _attach(module, where, replace)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1]
    handle.remove()
    return logits


def _keep(seen: list[Tensor], index: int) -> Callable[[Tensor], Tensor]:
    def keep(x: Tensor) -> Tensor:
        seen[index] = x.clone().view(-1, x.shape[-1])
        return x

    return keep


def _attach(module: nn.Module, where: str, fn: Callable[[Tensor], Tensor]):
    if where == "input":
        return module.register_forward_pre_hook(lambda _m, args: (fn(args[0]), *args[1:]))

    def after(_module: nn.Module, _args: object, output: Tensor | tuple[Tensor, ...]):
        if isinstance(output, tuple):
            return (fn(output[0]), *output[1:])
        return fn(output)

    return module.register_forward_hook(after)
