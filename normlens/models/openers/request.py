"""What is asked of an opener and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from normlens.models.lens import Lineage
from normlens.models.tokenizers import TokenizerChoice


@dataclass(frozen=True)
class Request:
    """A call of :func:`normlens.models.open_model`.

    Attributes:
        source: id, path, model or bridge.
        tokenizer: as given by the caller, ``...`` where not given.
        dtype: dtype to load in, None for the source's default.
        revision: of a hub model.
        seed: where given, weights are not read but drawn as before training.
    """

    source: str | Path | nn.Module
    tokenizer: TokenizerChoice
    dtype: torch.dtype | None
    revision: str | None
    seed: int | None = None

    @property
    def stored_dtype(self) -> torch.dtype:
        """The dtype for weights read from files: float32 unless asked otherwise."""
        return torch.float32 if self.dtype is None else self.dtype


@dataclass(frozen=True)
class Opened:
    """A loaded model before its norms are looked at; fields as in Identity and Lineage."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    source: str
    lineage: Lineage
    revision: str | None = None
    licence: str | None = None
    quantised_from: str | None = None
