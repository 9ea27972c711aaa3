"""Training without dropout: its random draws are no part of what a checkpoint holds."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

PART = "drop"
"""In the names of dropout rates: ``attn_pdrop``, ``attention_dropout``, ``layerdrop``."""


def remove_dropout(model: PreTrainedModel) -> None:
    """Set every dropout rate of ``model`` to zero: of modules, in attributes, in the config.

    Attention layers that draw their dropout inside a fused function keep the rate as a
    number of their own, copied from the config when they were built.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in _rates(vars(module)):
            setattr(module, name, 0.0)
    for name in _rates(vars(model.config)):
        setattr(model.config, name, 0.0)


def _rates(fields: dict[str, object]) -> list[str]:
    return [
        name for name, value in fields.items() if isinstance(value, float) and PART in name.lower()
    ]
