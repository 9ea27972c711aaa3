"""Digests that tell two models apart."""

from __future__ import annotations

import hashlib
import json
from itertools import chain

import torch
from torch import nn
from transformers import PretrainedConfig

VOLATILE = frozenset(
    {
        "_name_or_path",
        "architectures",
        "dtype",
        "name_or_path",
        "torch_dtype",
        "transformers_version",
    }
)
"""Config fields that loading and saving set: where a model came from, not what it is."""


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over name, dtype, shape and bytes of every parameter and buffer, by name.

    Tied parameters count once, under their first name.
    """
    digest = hashlib.sha256()
    tensors = dict(chain(model.named_parameters(), model.named_buffers()))
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def config_sha256(config: PretrainedConfig) -> str:
    """SHA-256 of the config as sorted JSON, without :data:`VOLATILE` fields."""
    fields = {key: value for key, value in config.to_dict().items() if key not in VOLATILE}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()
