"""The published procedure for the error of DLA over heads, transcribed from its description.

Weights are folded first (gain into the unembedding, unembedding centred over the
vocabulary); then, for the last position of each sequence and for each head in turn,

    DLA = centre(head) / scale(residual) . W[:, token]
    DE  = LN(residual) . W[:, token] - LN(residual - head) . W[:, token]

with ``token`` the token at that position and LN without affine. A scale-free model uses its
constant instead of the scale, both times.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def effects_of_heads(
    residual: Array,
    heads: Array,
    tokens: Array,
    gamma: Array,
    w_u: Array,
    *,
    eps: float = 0.0,
    constant: float | None = None,
) -> tuple[Array, Array]:
    """DLA and direct effect, each ``[head sample]``.

    ``residual`` is ``[sample d_model]``, ``heads`` ``[head sample d_model]``, ``tokens``
    ``[sample]``, ``w_u`` ``[d_model vocab]``.
    """
    folded = gamma[:, None] * w_u
    folded = folded - folded.mean(1, keepdims=True)
    dla = np.zeros(heads.shape[:2])
    direct = np.zeros(heads.shape[:2])
    for head in range(heads.shape[0]):
        for sample in range(heads.shape[1]):
            r, c = residual[sample], heads[head, sample]
            column = folded[:, tokens[sample]]
            dla[head, sample] = (c - c.mean()) / _scale(r, eps, constant) @ column
            ablated = r - c
            intact = (r - r.mean()) / _scale(r, eps, constant) @ column
            without = (ablated - ablated.mean()) / _scale(ablated, eps, constant) @ column
            direct[head, sample] = intact - without
    return dla, direct


def nmae(dla: Array, direct: Array) -> float:
    """Mean absolute error over mean absolute effect, both over heads and samples."""
    return float(np.abs(dla - direct).mean() / np.abs(direct).mean())


def interval(dla: Array, direct: Array, draws: int, seed: int) -> tuple[float, float]:
    """95 % bootstrap interval, heads and samples drawn with replacement and crossed."""
    rng = np.random.default_rng(seed)
    heads, samples = dla.shape
    values = []
    for _ in range(draws):
        h = rng.choice(heads, heads)
        s = rng.choice(samples, samples)
        values.append(nmae(dla[h][:, s], direct[h][:, s]))
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _scale(x: Array, eps: float, constant: float | None) -> float:
    if constant is not None:
        return constant
    return float(np.sqrt(((x - x.mean()) ** 2).mean() + eps))
