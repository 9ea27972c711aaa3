"""The blocks of a model."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from normlens.models.families import family_of


def block_modules(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """The blocks in order of execution; the input of each is the residual stream before it.

    Raises:
        LoadError: the model type is not supported.
    """
    return tuple(model.get_submodule(family_of(model).blocks).children())
