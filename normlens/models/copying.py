"""A copy of a model's structure that shares its weights, and casting one."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def structural_copy(model: ModuleT) -> ModuleT:
    """Copy modules, config and hooks of ``model``; share the memory of its tensors.

    Submodules may be exchanged, cast, hooked or put in another mode in the copy without
    touching ``model``. Parameters of the copy are new objects on the same storage without
    gradients, tied where they were tied; buffers likewise. A change *inside* a tensor is
    seen by both.
    """
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach()
    return copy.deepcopy(model, memo)


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast parameters and saved buffers of ``model`` in place, as loading in ``dtype`` does.

    Buffers that are not saved, such as rotary frequencies, keep their dtype: rounding them
    would move every position.
    """
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.to(dtype)
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and name not in module._non_persistent_buffers_set:
                module.register_buffer(name, buffer.to(dtype))
