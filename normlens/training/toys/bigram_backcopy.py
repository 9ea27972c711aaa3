"""The bigram-backcopy task: a Markov chain in which some tokens ask for a copy.

A sequence begins with BOS and one token that is no trigger. Then, with ``T`` the triggers,

    x[i+1] ~ P(. | x[i])     if x[i] is not in T
    x[i+1] = x[i-1]          if x[i] is in T

so a head has something to do at triggers and nothing elsewhere. What a trigger copies is
never a trigger, hence two triggers never follow each other.

Source: 2410.13835, section 2. There too ``P`` comes from the characters of a text
(Shakespeare) and, in the authors' code, the triggers are its three most frequent tokens.
Here the text is that of the bundled excerpts, and the first token is never a trigger.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.errors import BadText, UsageError
from normlens.text import Documents, read_documents

BOS = 0


@dataclass(frozen=True)
class Optimum:
    """Least expected loss of any model, nats/token, over sequences of one length.

    Attributes:
        loss: over all predictions, the first included.
        other: over predictions after tokens that are neither trigger nor BOS; those after
            triggers cost 0.
        trigger_share: expected share of triggers among the tokens that predict.
    """

    loss: float
    other: float
    trigger_share: float


@dataclass(frozen=True, eq=False)
class BigramBackcopy:
    """One chain with its triggers; batches are functions of (seed, step).

    Attributes:
        tokens: what each id stands for; id 0 is BOS.
        transitions: ``P``, row by current token; the rows of BOS and of triggers are 0.
        start: distribution of the first token after BOS.
        triggers: ids that ask for a copy.
    """

    tokens: tuple[str, ...]
    transitions: Float[np.ndarray, "vocab vocab"]
    start: Float[np.ndarray, " vocab"]
    triggers: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the tables.

        Raises:
            UsageError: a row is no distribution, BOS can recur, or a trigger can come first.
        """
        free = [i for i in range(1, len(self.tokens)) if i not in self.triggers]
        rows = np.vstack([self.transitions[free], self.start])
        if not np.allclose(rows.sum(-1), 1) or rows.min() < 0:
            raise UsageError("a row of the transitions is no distribution; normalise the rows")
        if rows[:, BOS].any() or self.start[list(self.triggers)].any() or BOS in self.triggers:
            raise UsageError("BOS must not recur and no trigger may come first; set those to 0")

    def batch(
        self, seed: int, step: int, *, sequences: int, context: int
    ) -> Int[Tensor, "sequence pos"]:
        """The sequences of a step; BOS is their first token."""
        draws = np.random.default_rng((seed, step)).random((context, sequences))
        ids = np.full((sequences, context), BOS, dtype=np.int64)
        ids[:, 1] = _drawn(draws[1], np.cumsum(self.start)[None])
        copies = np.isin(np.arange(len(self.tokens)), self.triggers)
        for i in range(2, context):
            now = ids[:, i - 1]
            new = _drawn(draws[i], self._cumulative[now])
            ids[:, i] = np.where(copies[now], ids[:, i - 2], new)
        return torch.from_numpy(ids)

    def is_trigger(self, ids: Int[Tensor, "*any"]) -> Bool[Tensor, "*any"]:
        """Which tokens are triggers."""
        return torch.isin(ids, torch.tensor(self.triggers, device=ids.device))

    def optimum(self, context: int) -> Optimum:
        """The Bayes loss in closed form.

        With ``n_i(a)`` the probability that token ``i`` is the non-trigger ``a`` and
        ``g_i(a)`` that it is a trigger after ``a``: ``n_{i+1} = n_i P_free + g_i`` and
        ``g_{i+1}(a) = n_i(a) P(T | a)``. Each ``a`` costs the entropy of its row.
        """
        to_trigger = self.transitions[:, list(self.triggers)].sum(-1)
        to_free = self.transitions.copy()
        to_free[:, list(self.triggers)] = 0
        row_entropy = _entropy(self.transitions)
        now, after = self.start, np.zeros_like(self.start)
        cost = free = trigger = 0.0
        for _ in range(1, context - 1):
            cost += float(now @ row_entropy)
            free += float(now.sum())
            trigger += float(after.sum())
            now, after = now @ to_free + after, now * to_trigger
        predictions = context - 1
        return Optimum(
            loss=(cost + float(_entropy(self.start[None])[0])) / predictions,
            other=cost / free,
            trigger_share=trigger / predictions,
        )

    @cached_property
    def _cumulative(self) -> np.ndarray:
        return np.cumsum(self.transitions, -1)


def character_task(
    text: Documents | None = None, *, vocabulary: int = 64, triggers: int = 3
) -> BigramBackcopy:
    """The task over the characters of a text.

    The most frequent characters get ids from 1 on, by frequency; pairs with any other are
    not counted. The first ``triggers`` of them are the triggers.

    Args:
        text: where the bigrams come from; by default the bundled excerpts of books.
        vocabulary: number of ids, BOS included.
        triggers: how many.

    Raises:
        BadText: the text has fewer characters than that, or one that nothing follows.
    """
    items = (text or read_documents("books")).items
    documents = [document.text for document in items]
    counted = Counter(character for document in documents for character in document)
    ranked = sorted(counted, key=lambda c: (-counted[c], c))[: vocabulary - 1]
    if len(ranked) < vocabulary - 1:
        raise BadText(f"the text has {len(ranked)} characters, not {vocabulary - 1}; give another")
    ids = {character: i for i, character in enumerate(ranked, start=1)}
    pairs = Counter(pair for document in documents for pair in pairwise(document))
    counts = np.zeros((vocabulary, vocabulary))
    for (first, second), number in pairs.items():
        if first in ids and second in ids:
            counts[ids[first], ids[second]] = number
    chosen = tuple(range(1, triggers + 1))
    counts[list(chosen)] = 0
    totals = counts.sum(-1, keepdims=True)
    if (totals[triggers + 1 :] == 0).any():
        raise BadText("a character of the text is followed by nothing counted; give more text")
    start = np.array([0.0, *(counted[character] for character in ranked)])
    start[list(chosen)] = 0
    return BigramBackcopy(
        tokens=("<bos>", *ranked),
        transitions=counts / np.where(totals == 0, 1, totals),
        start=start / start.sum(),
        triggers=chosen,
    )


def _drawn(draws: np.ndarray, cumulative: np.ndarray) -> np.ndarray:
    """Index where a uniform draw falls; rounding in the last sum never leads past its end."""
    below = (draws[:, None] >= cumulative).sum(-1)
    last = (cumulative < cumulative[:, -1:]).sum(-1)
    return np.minimum(below, last)


def _entropy(rows: np.ndarray) -> np.ndarray:
    return -np.where(rows > 0, rows * np.log(np.where(rows > 0, rows, 1)), 0).sum(-1)
