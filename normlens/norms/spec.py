"""What a norm computes, as data: its kind and its constants."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NormKind(StrEnum):
    """The map between a norm's input and output."""

    LAYER_NORM = "layer_norm"
    RMS_NORM = "rms_norm"
    FIXED_SCALE = "fixed_scale"
    IDENTITY = "identity"
    DYT = "dyt"
    OPAQUE = "opaque"

    @property
    def linear(self) -> bool:
        """Whether the map is affine in its input (no scale that depends on it)."""
        return self in (NormKind.FIXED_SCALE, NormKind.IDENTITY)

    @property
    def elementwise(self) -> bool:
        """Whether each element of the output depends on that element of the input alone."""
        return self in (NormKind.DYT, NormKind.IDENTITY)

    @property
    def has_scale(self) -> bool:
        """Whether there is a denominator per token, live or constant, and it is known."""
        return self not in (NormKind.DYT, NormKind.OPAQUE)

    @property
    def has_live_scale(self) -> bool:
        """Whether each token is divided by a statistic of itself."""
        return self in (NormKind.LAYER_NORM, NormKind.RMS_NORM)


@dataclass(frozen=True)
class NormSpec:
    """Constants of one norm module.

    ``y = centre(x) / scale * gamma + beta`` with ``centre(x) = x - mean(x)`` when
    ``centred`` and ``gamma = weight + 1`` when ``unit_offset``. The scale is

    * LAYER_NORM: ``sqrt(var(x) + eps)`` (biased variance)
    * RMS_NORM: ``sqrt(mean(x**2) + eps)``
    * FIXED_SCALE: the constant ``fixed_scale``
    * IDENTITY: 1; OPAQUE: unknown, never invented.

    DYT has no scale: ``y = tanh(alpha * x) * gamma + beta``.

    Attributes:
        kind: the map.
        width: size of the normalised axis.
        eps: as read from the module, never from a config; None where the kind has none.
        centred: whether the mean over the axis is subtracted.
        unit_offset: whether the stored weight is ``gamma - 1`` (Gemma).
        gain: whether there is a weight.
        bias: whether there is an additive bias.
        fixed_scale: the constant denominator of FIXED_SCALE, else None.
        alpha: the slope inside the tanh of DYT, else None.
        eps_encoded: FIXED_SCALE stored as a LayerNorm with a huge eps (the public LN-free
            format); then ``fixed_scale = sqrt(eps)`` and the weight carries its inverse.
        compute_dtype: dtype the module normalises in, "input" for that of its input.
    """

    kind: NormKind
    width: int
    eps: float | None = None
    centred: bool = False
    unit_offset: bool = False
    gain: bool = False
    bias: bool = False
    fixed_scale: float | None = None
    eps_encoded: bool = False
    compute_dtype: str = "input"
    alpha: float | None = None
