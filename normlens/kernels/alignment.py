"""The angle between two vectors, exact where they are nearly parallel.

    angle = 2 atan2(|a/|a| - b/|b||, |a/|a| + b/|b||)        in [0, pi]
    1 - cos(a, b) = |a/|a| - b/|b||**2 / 2                   in [0, 2]

``1 - a.b / (|a| |b|)`` in float32 is rounding below about 1e-7, where consecutive layers can
be; these forms keep their relative precision. Source: Kahan, How Futile are Mindless
Assessments of Roundoff, section 12.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

Vectors = Float[Tensor, "*batch width"]


def alignment(a: Vectors, b: Vectors) -> Float[Tensor, "2 ..."]:
    """``1 - cosine`` and ``angle / pi`` along the last axis; NaN where a vector is 0."""
    a, b = unit(a), unit(b)
    apart, together = (a - b).norm(dim=-1), (a + b).norm(dim=-1)
    return torch.stack([apart.square() / 2, 2 * torch.atan2(apart, together) / math.pi])


def distance(a: Vectors, b: Vectors) -> Float[Tensor, "*batch"]:
    """``1 - cosine`` alone."""
    return (unit(a) - unit(b)).norm(dim=-1).square() / 2


def unit(x: Vectors) -> Vectors:
    """The vector over its norm; NaN where it is 0."""
    return x / x.norm(dim=-1, keepdim=True)


def centred(x: Vectors) -> Vectors:
    """Without the component along ones, which is what centring in a norm removes."""
    return x - x.mean(-1, keepdim=True)


def without_largest(a: Vectors, b: Vectors, count: int) -> tuple[Vectors, Vectors]:
    """Both with the ``count`` coordinates at 0 where ``|a| + |b|`` is largest, row by row."""
    count = min(count, a.shape[-1] - 1)
    largest = (a.abs() + b.abs()).topk(count, dim=-1).indices
    return a.scatter(-1, largest, 0), b.scatter(-1, largest, 0)


def widen(x: Tensor) -> Tensor:
    """At least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
