"""Classes of the tokens that are predicted, from tokenizer and corpus alone.

Three partitions; every predicted token is in exactly one class of each:

* kind. ``special``: a special token. ``other``: no text by itself, such as part of a
  character. Otherwise by the token's text without surrounding whitespace: empty,
  ``whitespace``; digits alone, ``digit``; neither letter nor digit, ``punctuation``; anything
  else belongs to a word, ``word continuation`` where it follows a letter or digit without a
  space and ``word start`` elsewhere. (Scripts without spaces are mostly continuations.)
* context. ``induction``: the pair (token before, token) stands earlier in the sequence, so
  that copying what came next there is right. ``repeated``: not so, but the token itself
  stands earlier. ``new``: it does not.
* frequency. Predicted tokens of this corpus in fifths of equal mass, by how often their id
  is predicted in it (of equal ids, the smaller counts as the more frequent).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from normlens.kernels.token_strings import REPLACEMENT, token_string
from normlens.text.sequences import Sequences

KINDS = (
    "word start",
    "word continuation",
    "digit",
    "punctuation",
    "whitespace",
    "special",
    "other",
)
CONTEXTS = ("new", "repeated", "induction")
FREQUENCIES = ("most frequent fifth", "second fifth", "third fifth", "fourth fifth", "rarest fifth")

Classes = Int[Tensor, "sequence target"]
"""Class index of the token after each position; arbitrary where there is none."""


@dataclass(frozen=True)
class _Piece:
    kind: str
    spaced: bool
    ends_word: bool


def kinds(sequences: Sequences, tokenizer: PreTrainedTokenizerBase) -> Classes:
    """Index into :data:`KINDS` of the token after each position."""
    special = set(tokenizer.all_special_ids)
    present, inverse = np.unique(sequences.ids.numpy(), return_inverse=True)
    inverse = inverse.reshape(sequences.ids.shape)
    pieces = [_piece(tokenizer, int(token), special) for token in present]
    kind = np.array([KINDS.index(piece.kind) for piece in pieces])
    joins = np.array([piece.kind == "word start" and not piece.spaced for piece in pieces])
    ends_word = np.array([piece.ends_word for piece in pieces])
    before, after = inverse[:, :-1], inverse[:, 1:]
    continues = joins[after] & ends_word[before]
    return torch.from_numpy(np.where(continues, KINDS.index("word continuation"), kind[after]))


def contexts(sequences: Sequences) -> Classes:
    """Index into :data:`CONTEXTS` of the token after each position."""
    found = torch.zeros(len(sequences), sequences.ids.shape[1] - 1, dtype=torch.int64)
    for row, length in enumerate(sequences.lengths.tolist()):
        if length > 1:
            ids = sequences.ids[row, :length].tolist()
            found[row, : length - 1] = torch.tensor(list(_contexts(ids)))
    return found


def frequencies(sequences: Sequences) -> Classes:
    """Index into :data:`FREQUENCIES` of the token after each position."""
    after = sequences.ids[:, 1:]
    real = torch.arange(1, sequences.ids.shape[1]) < sequences.lengths[:, None]
    counts = torch.bincount(after[real], minlength=int(sequences.ids.max()) + 1)
    order = torch.argsort(counts, descending=True, stable=True)
    more_frequent = counts[order].cumsum(0) - counts[order]
    fifth = torch.empty_like(counts)
    fifth[order] = more_frequent * len(FREQUENCIES) // counts.sum().clamp_min(1)
    return fifth.clamp(max=len(FREQUENCIES) - 1)[after]


def _piece(tokenizer: PreTrainedTokenizerBase, token: int, special: set[int]) -> _Piece:
    if token in special:
        return _Piece("special", spaced=False, ends_word=False)
    decoded = str(tokenizer.decode([token], clean_up_tokenization_spaces=False))
    if not decoded or REPLACEMENT in decoded:
        return _Piece("other", spaced=False, ends_word=False)
    text = token_string(tokenizer, token)
    core = text.strip()
    if not core:
        kind = "whitespace"
    elif core.isdigit():
        kind = "digit"
    elif not any(character.isalnum() for character in core):
        kind = "punctuation"
    else:
        kind = "word start"
    return _Piece(kind, spaced=text[0].isspace(), ends_word=text[-1].isalnum())


def _contexts(ids: list[int]) -> Iterator[int]:
    tokens: set[int] = set()
    pairs: set[tuple[int, int]] = set()
    for before, token in pairwise(ids):
        tokens.add(before)
        seen = 2 if (before, token) in pairs else 1 if token in tokens else 0
        yield seen
        pairs.add((before, token))
