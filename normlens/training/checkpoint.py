"""A training state in one safetensors file that is replaced atomically.

Keys are ``model.<parameter or buffer>`` and ``optimizer.<parameter>.<moment>``; the
metadata entry ``normlens`` is JSON with the steps done and what the state belongs to.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from normlens.atomic import atomic_file
from normlens.errors import StoreMismatch

FILE_NAME = "checkpoint.safetensors"


def save_checkpoint(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, meta: dict[str, str | int]
) -> None:
    """Write parameters, buffers, optimizer moments and ``meta``.

    Raises:
        OutputError: ``directory`` cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    names = {id(p): n for n, p in model.named_parameters()}
    for name, value in model.named_parameters():
        tensors[f"model.{name}"] = value.detach().contiguous()
    for name, value in model.named_buffers():
        # Buffers can be views of one tensor, which the format refuses.
        tensors[f"model.{name}"] = value.detach().clone().contiguous()
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            tensors[f"optimizer.{names[id(parameter)]}.{key}"] = value.detach().contiguous()
    with atomic_file(directory / FILE_NAME) as temporary:
        save_file(tensors, temporary, metadata={"normlens": json.dumps(meta, sort_keys=True)})


def load_checkpoint(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    expected: dict[str, str],
) -> int:
    """Restore a checkpoint in place; returns the number of steps done (0 without one).

    Raises:
        StoreMismatch: the checkpoint is unreadable or belongs to another recipe,
            corpus or ancestor.
    """
    path = directory / FILE_NAME
    if not path.is_file():
        return 0
    try:
        with safe_open(path, framework="pt") as file:
            meta = json.loads(file.metadata()["normlens"])
            # safe_open gives no mapping: it cannot be iterated over.
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, KeyError, ValueError) as error:
        raise StoreMismatch(
            f"checkpoint {path} is unreadable ({error}); delete it to start over"
        ) from error
    for key, value in expected.items():
        if meta.get(key) != value:
            raise StoreMismatch(
                f"checkpoint {path} belongs to another run: its {key} is {meta.get(key)!r}, "
                f"now {value!r}; choose another --out or delete it"
            )
    parameters = dict(model.named_parameters())
    for name, value in [*parameters.items(), *model.named_buffers()]:
        value.data.copy_(tensors[f"model.{name}"])
    for name, parameter in parameters.items():
        prefix = f"optimizer.{name}."
        optimizer.state[parameter] = {
            key.removeprefix(prefix): value.to(parameter.device)
            for key, value in tensors.items()
            if key.startswith(prefix)
        }
    return int(meta["step"])
