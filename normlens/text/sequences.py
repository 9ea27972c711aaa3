"""Token sequences as a pass sees them: ids once, lengths, documents, BOS policy."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

BosPolicy = Literal["prepend", "none"]


@dataclass(frozen=True)
class Sequences:
    """Right-padded token ids of a corpus.

    Attributes:
        ids: ``[sequence pos]`` int64, padded with ``pad_id``.
        lengths: real tokens per sequence, ``[sequence]`` int64.
        document: document index per sequence, ``[sequence]`` int64.
        document_ids: id of every document; bootstrap weights derive from these.
        name: of the corpus, for provenance.
        bos: ``prepend`` (BOS first in every sequence) or ``none``.
        pad_id: id in padded places; masked, so any valid id does.
        tokenizer_sha256: digest of the tokenizer that made the ids.
    """

    ids: Int[Tensor, "sequence pos"]
    lengths: Int[Tensor, " sequence"]
    document: Int[Tensor, " sequence"]
    document_ids: tuple[str, ...]
    name: str
    bos: BosPolicy
    pad_id: int
    tokenizer_sha256: str

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """Number of real tokens, BOS included."""
        return int(self.lengths.sum())

    @cached_property
    def sha256(self) -> str:
        """Digest of ids, lengths, documents and BOS policy."""
        digest = hashlib.sha256(f"{self.bos}:{self.pad_id}:{self.document_ids}".encode())
        for tensor in (self.ids, self.lengths, self.document):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()

    def select(self, rows: Int[Tensor, " chosen"]) -> Sequences:
        """The given rows, in the given order."""
        return Sequences(
            self.ids[rows], self.lengths[rows], self.document[rows], self.document_ids,
            self.name, self.bos, self.pad_id, self.tokenizer_sha256,
        )  # fmt: skip

    def spread(self, count: int) -> Sequences:
        """``count`` sequences spread evenly over the corpus (all of them when fewer exist)."""
        if count >= len(self):
            return self
        rows = np.linspace(0, len(self) - 1, count).round().astype(np.int64)
        return self.select(torch.from_numpy(rows))


@dataclass(frozen=True)
class Batch:
    """Some consecutive sequences of a pass, on the model's device.

    Attributes:
        ids: ``[batch pos]``.
        mask: real tokens, ``[batch pos]`` bool.
        first: the first real token of each sequence, ``[batch pos]`` bool.
        rest: real tokens that are not first, ``[batch pos]`` bool.
        index: index of each sequence in the corpus, ``[batch]``, CPU.
        document: document index of each sequence, ``[batch]``, CPU.
        weights: Poisson bootstrap weights, ``[replicate batch]`` float64, CPU.
    """

    ids: Int[Tensor, "batch pos"]
    mask: Tensor
    first: Tensor
    rest: Tensor
    index: Int[Tensor, " batch"]
    document: Int[Tensor, " batch"]
    weights: Tensor

    @property
    def has_next(self) -> Tensor:
        """Positions with a real next token, ``[batch pos-1]`` bool."""
        return self.mask[:, :-1] & self.mask[:, 1:]
