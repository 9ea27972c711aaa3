"""Head scores of one prompt from attention weights, one query and one key at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def scores(weights: np.ndarray, tokens: Sequence[int]) -> dict[str, float]:
    """All scores of one head; ``weights`` is ``[query key]``, the first token is apart."""
    per_query: dict[str, list[float]] = {name: [] for name in NAMES}
    for i in range(1, len(tokens)):
        row = [float(w) for w in weights[i]]
        same = [j for j in range(1, i) if tokens[j] == tokens[i]]
        after = [j for j in range(1, i) if tokens[j - 1] == tokens[i]]
        if i > 1:
            per_query["previous_token"].append(row[i - 1])
        if same:
            per_query["duplicate_token"].append(sum(row[j] for j in same))
        if after:
            per_query["induction"].append(sum(row[j] for j in after))
        per_query["current_token"].append(row[i])
        per_query["first_token"].append(row[0])
        entropy = -sum(w * math.log(w) for w in row if w > 0)
        per_query["entropy"].append(entropy)
    return {name: float(np.mean(v)) if v else math.nan for name, v in per_query.items()}


NAMES = (
    "previous_token",
    "duplicate_token",
    "induction",
    "current_token",
    "first_token",
    "entropy",
)
