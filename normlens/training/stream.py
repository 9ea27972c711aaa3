"""Training batches as a pure function of (corpus, seed, step).

Documents are tokenised once each and cut into windows of ``context - 1`` tokens; BOS is
put before every window. An epoch is a permutation of the windows drawn from
(data_seed, epoch). Nothing has to be remembered to resume.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from normlens.errors import BadText, UsageError
from normlens.text.encoding import require_bos, token_ids
from normlens.training.text import TrainingText


class Windows:
    """The training windows of a text; each text is tokenised once per tokenizer and context."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], np.ndarray] = {}

    def of(
        self, text: TrainingText, tokenizer: PreTrainedTokenizerBase, context: int
    ) -> Int[np.ndarray, "window token"]:
        """:func:`cut` of a text's documents.

        Raises:
            BadText: a document cannot be read, or none fills a window.
        """
        vocabulary = json.dumps(tokenizer.get_vocab(), sort_keys=True).encode()
        key = (text.sha256, hashlib.sha256(vocabulary).hexdigest(), context)
        if key not in self._known:
            self._known[key] = cut(text.documents(), tokenizer, context)
        return self._known[key]


def cut(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerBase, context: int
) -> Int[np.ndarray, "window token"]:
    """Windows of ``context - 1`` tokens; none crosses from one document into the next.

    Raises:
        BadText: no document fills a window.
    """
    windows = [np.empty((0, context - 1), dtype=np.int32)]
    for text in documents:
        ids = np.asarray(token_ids(tokenizer, text), dtype=np.int32)
        whole = len(ids) // (context - 1)
        windows.append(ids[: whole * (context - 1)].reshape(whole, context - 1))
    found = np.concatenate(windows)
    if not len(found):
        raise BadText(
            f"no training document has {context - 1} tokens, one window; "
            "give longer texts or a shorter context"
        )
    return found


class TokenStream:
    """All training windows, addressable by step.

    Args:
        windows: of :func:`cut`.
        tokenizer: must define a BOS token.
        batch_size: sequences per step.
        data_seed: seed of the order.

    Raises:
        UsageError: the tokenizer has no BOS token.
    """

    def __init__(
        self,
        windows: Int[np.ndarray, "window token"],
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int,
        data_seed: int,
    ) -> None:
        if tokenizer.bos_token_id is None:
            raise UsageError("the tokenizer has no BOS token, which training puts first; add one")
        self.windows = windows
        self.bos = require_bos(tokenizer)
        self.batch_size = batch_size
        self.data_seed = data_seed
        self.tokens_per_step = batch_size * (windows.shape[1] + 1)
        self._epoch = -1
        self._permutation = np.empty(0, dtype=np.int64)

    def batch(self, step: int) -> Int[Tensor, "batch context"]:
        """The sequences of step ``step`` (from 0)."""
        count = len(self.windows)
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        rows = [self._order(int(p) // count)[int(p) % count] for p in positions]
        ids = np.pad(self.windows[rows], ((0, 0), (1, 0)), constant_values=self.bos)
        return torch.from_numpy(ids.astype(np.int64))

    def _order(self, epoch: int) -> np.ndarray:
        if self._epoch != epoch:
            self._epoch = epoch
            self._permutation = np.random.default_rng((self.data_seed, epoch)).permutation(
                len(self.windows)
            )
        return self._permutation
