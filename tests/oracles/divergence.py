"""Divergences of two next-token distributions, in float64, one token at a time."""

from __future__ import annotations

import math

import numpy as np


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    z = logits.astype(np.float64)
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def compare(logits: np.ndarray, other: np.ndarray, token: int) -> dict[str, float]:
    """One token's quantities; ``logits`` are the model's, ``other`` the reference's."""
    log_p, log_q = log_probabilities(logits), log_probabilities(other)
    p, q = np.exp(log_p), np.exp(log_q)
    jsd = kl_pq = kl_qp = 0.0
    for i in range(len(p)):
        m = (p[i] + q[i]) / 2
        jsd += 0.5 * p[i] * (log_p[i] - math.log(m)) + 0.5 * q[i] * (log_q[i] - math.log(m))
        kl_pq += p[i] * (log_p[i] - log_q[i])
        kl_qp += q[i] * (log_q[i] - log_p[i])
    return {
        "jsd": jsd,
        "kl_model_reference": kl_pq,
        "kl_reference_model": kl_qp,
        "agreement": float(p.argmax() == q.argmax()),
        "loss": -log_p[token],
        "reference_loss": -log_q[token],
        "delta_loss": log_q[token] - log_p[token],
    }


def context_class(ids: list[int], position: int) -> str:
    """Of the token after ``position``."""
    token = ids[position + 1]
    pairs = [(ids[i], ids[i + 1]) for i in range(position)]
    if (ids[position], token) in pairs:
        return "induction"
    return "repeated" if token in ids[: position + 1] else "new"


def fifth(predicted: list[int], token: int) -> int:
    """Which fifth of the mass a token's id starts in, most frequent ids first."""
    counts = {i: predicted.count(i) for i in set(predicted)}
    before = sum(n for i, n in counts.items() if (-n, i) < (-counts[token], token))
    return before * 5 // len(predicted)
