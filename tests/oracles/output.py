"""Quality of next-token predictions, one token at a time, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Token:
    sequence: int
    position: int
    cross_entropy: float
    entropy: float
    confidence: float
    correct: bool


def score(logits: list[np.ndarray], ids: list[list[int]]) -> list[Token]:
    """Every prediction of every sequence; ``logits`` holds ``[pos vocab]`` per sequence."""
    tokens = []
    for sequence, (rows, row_ids) in enumerate(zip(logits, ids, strict=True)):
        for position in range(len(row_ids) - 1):
            row = [float(v) for v in rows[position]]
            top = max(row)
            log_total = top + math.log(sum(math.exp(v - top) for v in row))
            log_p = [v - log_total for v in row]
            target = row_ids[position + 1]
            tokens.append(
                Token(
                    sequence=sequence,
                    position=position + 1,
                    cross_entropy=-log_p[target],
                    entropy=-sum(math.exp(v) * v for v in log_p),
                    confidence=math.exp(max(log_p)),
                    correct=row.index(top) == target,
                )
            )
    return tokens


def in_group(token: Token, group: str) -> bool:
    return group == "all" or (token.position == 1) == (group == "first")


def ece(tokens: list[Token], bins: int) -> float:
    total = 0.0
    for b in range(bins):
        inside = [t for t in tokens if b / bins < t.confidence <= (b + 1) / bins]
        if inside:
            accuracy = sum(t.correct for t in inside) / len(inside)
            confidence = sum(t.confidence for t in inside) / len(inside)
            total += len(inside) / len(tokens) * abs(accuracy - confidence)
    return total


def summary(tokens: list[Token], group: str, bins: int, weights: np.ndarray) -> dict[str, float]:
    """One row of the table; ``weights`` is ``[replicate sequence]``."""
    chosen = [t for t in tokens if in_group(t, group)]
    replicates = []
    for row in weights:
        n = sum(row[t.sequence] for t in chosen)
        if n:
            replicates.append(sum(row[t.sequence] * t.cross_entropy for t in chosen) / n)
    low, high = np.quantile(replicates, [0.025, 0.975])
    cross_entropy = sum(t.cross_entropy for t in chosen) / len(chosen)
    return {
        "n": len(chosen),
        "cross_entropy": cross_entropy,
        "cross_entropy_low": float(low),
        "cross_entropy_high": float(high),
        "perplexity": math.exp(cross_entropy),
        "entropy": sum(t.entropy for t in chosen) / len(chosen),
        "ece": ece(chosen, bins),
        "top1": sum(t.correct for t in chosen) / len(chosen),
    }


def quantile(tokens: list[Token], level: float) -> float:
    values = [t.cross_entropy for t in tokens]
    return float(np.quantile(values, level, method="inverted_cdf"))


def worst(tokens: list[Token]) -> list[tuple[int, float]]:
    """``(sequence, mean cross-entropy)``, worst first."""
    means = []
    for sequence in sorted({t.sequence for t in tokens}):
        values = [t.cross_entropy for t in tokens if t.sequence == sequence]
        means.append((sequence, sum(values) / len(values)))
    return sorted(means, key=lambda pair: (-pair[1], pair[0]))
