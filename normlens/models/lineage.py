"""Whether two models come from each other: declared by their cards, measured by their weights."""

from __future__ import annotations

import math

from normlens.comparison.lineage import RELATED_COSINE
from normlens.models.lens import Lens


def weight_cosine(a: Lens, b: Lens) -> float:
    """Cosine between the weights of two models, float64, dimensionless.

    ``<A, B> / (|A| |B|)`` over all parameters with at least two dimensions that both models
    have under one name and shape. Gains and biases are left out: gains near 1 would make
    unrelated models look alike. NaN when nothing is shared.
    """
    dot = square_a = square_b = 0.0
    others = dict(b.model.named_parameters())
    for name, parameter in a.model.named_parameters():
        other = others.get(name)
        if other is None or parameter.ndim < 2 or parameter.shape != other.shape:
            continue
        x = parameter.detach().double().flatten()
        y = other.detach().to(x.device).double().flatten()
        dot += x.dot(y).item()
        square_a += x.dot(x).item()
        square_b += y.dot(y).item()
    norm = math.sqrt(square_a) * math.sqrt(square_b)
    return dot / norm if norm > 0 else math.nan


def related(a: Lens, b: Lens) -> bool:
    """Whether indexwise comparison (head 3 against head 3) of two models means something.

    True iff :func:`weight_cosine` is above :data:`RELATED_COSINE`: independently trained
    models are near 0 apart from the mean of their embeddings, fine-tuned ones near 1.
    What the cards declare does not count.
    """
    cosine = weight_cosine(a, b)
    return not math.isnan(cosine) and cosine > RELATED_COSINE
