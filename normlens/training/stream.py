"""Training batches as a pure function of (corpus, seed, step).

Documents are tokenised once each and cut into windows of ``context - 1`` tokens; BOS is
put before every window. An epoch is a permutation of the windows drawn from
(data_seed, epoch). Nothing has to be remembered to resume.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from normlens.errors import BadText, UsageError
from normlens.text.encoding import require_bos, token_ids


class TokenStream:
    """All training windows, addressable by step.

    Args:
        documents: texts; a window never crosses from one into the next.
        tokenizer: must define a BOS token.
        context: tokens per sequence, BOS included.
        batch_size: sequences per step.
        data_seed: seed of the order.

    Raises:
        UsageError: the tokenizer has no BOS token.
        BadText: no document fills a window.
    """

    def __init__(
        self,
        documents: Iterable[str],
        tokenizer: PreTrainedTokenizerBase,
        *,
        context: int,
        batch_size: int,
        data_seed: int,
    ) -> None:
        if tokenizer.bos_token_id is None:
            raise UsageError("the tokenizer has no BOS token, which training puts first; add one")
        windows = [np.empty((0, context - 1), dtype=np.int32)]
        for text in documents:
            ids = np.asarray(token_ids(tokenizer, text), dtype=np.int32)
            whole = len(ids) // (context - 1)
            windows.append(ids[: whole * (context - 1)].reshape(whole, context - 1))
        self.windows = np.concatenate(windows)
        if not len(self.windows):
            raise BadText(
                f"no training document has {context - 1} tokens, one window; "
                "give longer texts or a shorter context"
            )
        self.bos = require_bos(tokenizer)
        self.batch_size = batch_size
        self.data_seed = data_seed
        self.tokens_per_step = batch_size * context
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
