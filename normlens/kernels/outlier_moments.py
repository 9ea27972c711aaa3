"""Moments of activations over dimensions and over tokens, in few passes over memory.

    variance     mean((x - mu)**2) over dimensions
    kurtosis     mean((x - mu)**4) / variance**2, the fourth standardised moment (Gaussian 3)
    mean_square  variance + mu**2
    features     sum over tokens of (x_j - mu)**2, per dimension j and token group

The per-feature kurtosis ``E[s**2]/E[s]**2`` over dimensions follows from the features of a
whole corpus: it does not depend on the global RMS that He et al. divide by (2405.19279,
eq. 3), which cancels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.text.sequences import Batch


@dataclass(frozen=True)
class Moments:
    """Moments of one activation; non-finite tokens keep a non-finite ``mean_square``.

    Attributes:
        tokens: ``[3 batch pos]``: variance, kurtosis, mean square.
        features: ``[group d]``: centred sums of squares of first tokens and of the rest.
        raw: ``[group d]``: the same without centring.
    """

    tokens: Float[Tensor, "3 batch pos"]
    features: Float[Tensor, "2 d"]
    raw: Float[Tensor, "2 d"]


def finite_tokens(x: Float[Tensor, "batch pos d"]) -> Bool[Tensor, "batch pos"]:
    """Tokens without a NaN or an infinity."""
    return torch.linalg.vector_norm(x, dim=-1).isfinite()


def group_rows(
    batch: Batch, finite: Bool[Tensor, "batch pos"], dtype: torch.dtype
) -> Float[Tensor, "2 token"]:
    """Indicators of first tokens and of the rest: a sum over each is one matrix product."""
    return (torch.stack([batch.first, batch.rest]) & finite).flatten(1).to(dtype)


def moments(x: Float[Tensor, "batch pos d"], groups: Float[Tensor, "2 token"]) -> Moments:
    """Moments of a finite activation, float32 or wider."""
    width = x.shape[-1]
    mean = x.mean(-1)
    squared = (x - mean[..., None]).square_()
    variance = squared.mean(-1)
    fourth = torch.linalg.vecdot(squared, squared) / width
    features = groups @ squared.flatten(0, 1)
    # sum x**2 = sum (x - mu)**2 + 2 sum mu x - sum mu**2, without another pass.
    by_mean = groups * mean.flatten()
    raw = features + 2 * (by_mean @ x.flatten(0, 1)) - (by_mean @ mean.flatten())[:, None]
    tokens = torch.stack([variance, fourth / variance.square(), variance + mean.square()])
    return Moments(tokens, features, raw)


def feature_kurtosis(features: Float[Tensor, "*view d"]) -> Float[Tensor, "*view"]:
    """``E[s**2]/E[s]**2`` over dimensions; NaN where all are 0."""
    return features.square().mean(-1) / features.mean(-1).square()
