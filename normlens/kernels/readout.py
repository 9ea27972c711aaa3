"""What an attribution reads: one direction per position in the space before the final norm.

    u(t) = gamma * (W_U[:, t] - W_U[:, reference])      logit of t minus logit of the reference

where the reference is the mean over the vocabulary or another token. Where the final norm
centres its input, ``u`` is centred over d_model instead of every component, since
``centre(c) . u = c . centre(u)``. What does not depend on the residual is a constant:

    norm_bias    = beta . (W_U[:, t] - W_U[:, reference])
    unembed_bias = b_U[t] - b_U[reference]

Only the columns of the tokens in question are gathered; each distinct one is kept once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.capture.protocol import ComponentWeights
from normlens.norms.reference import centre

VOCABULARY_MEAN = -1
"""As a reference: the mean over the vocabulary instead of a token."""


@dataclass(frozen=True)
class Readout:
    """Directions to read and the one each position reads.

    Attributes:
        vectors: ``u`` of every distinct pair of target and reference, float32 or wider.
        constants: ``norm_bias`` and ``unembed_bias`` of each row, in logits, float64; a
            model without the bias has no such entry.
        row: index into the rows.
    """

    vectors: Float[Tensor, "row d_model"]
    constants: Mapping[str, Float[Tensor, " row"]]
    row: Int[Tensor, "batch pos"]


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in for weights or activations of ``dtype``."""
    return torch.promote_types(dtype, torch.float32)


@torch.no_grad()
def read_logits(
    weights: ComponentWeights,
    targets: Int[Tensor, "batch pos"],
    references: Int[Tensor, "batch pos"] | None = None,
) -> Readout:
    """Directions whose readings are ``logit(target) - logit(reference)``.

    Args:
        weights: of the component view, nothing folded.
        targets: token ids.
        references: token ids, or :data:`VOCABULARY_MEAN`; None: that everywhere.
    """
    dtype = at_least_float32(weights.w_u.dtype)
    vocabulary = weights.w_u.shape[1]
    if references is None:
        references = torch.full_like(targets, VOCABULARY_MEAN)
    # A pair is one number, so that its distinct values are found by one sort.
    pairs, row = torch.unique(targets * (vocabulary + 1) + (references + 1), return_inverse=True)
    target = pairs // (vocabulary + 1)
    reference = pairs % (vocabulary + 1) - 1
    columns = weights.w_u.T[target].to(dtype)
    columns -= _reference_columns(weights, reference, dtype)
    constants: dict[str, Tensor] = {}
    if weights.beta is not None:
        constants["norm_bias"] = columns.double() @ weights.beta.double()
    if weights.b_u is not None:
        b_u = weights.b_u.double()
        constants["unembed_bias"] = b_u[target] - torch.where(
            reference == VOCABULARY_MEAN, b_u.mean(), b_u[reference.clamp_min(0)]
        )
    if weights.gamma is not None:
        columns = columns * weights.gamma.to(dtype)
    return Readout(centre(weights.final.spec, columns), constants, row)


@torch.no_grad()
def read_from_logits(
    logits: Float[Tensor, "batch pos vocab"],
    targets: Int[Tensor, "batch pos"],
    references: Int[Tensor, "batch pos"] | None = None,
) -> Float[Tensor, "batch pos"]:
    """``logit(target) - logit(reference)`` from a model's own logits, float64.

    Arguments as in :func:`read_logits`.
    """
    mean = logits.mean(-1, dtype=at_least_float32(logits.dtype)).double()
    target = logits.gather(-1, targets[..., None])[..., 0].double()
    if references is None:
        return target - mean
    other = logits.gather(-1, references.clamp_min(0)[..., None])[..., 0].double()
    return target - torch.where(references == VOCABULARY_MEAN, mean, other)


def _reference_columns(
    weights: ComponentWeights, reference: Int[Tensor, " row"], dtype: torch.dtype
) -> Tensor:
    is_mean = reference == VOCABULARY_MEAN
    mean = weights.w_u.mean(1, dtype=dtype)
    if bool(is_mean.all()):
        return mean
    other = weights.w_u.T[reference.clamp_min(0)].to(dtype)
    return torch.where(is_mean[:, None], mean, other)
