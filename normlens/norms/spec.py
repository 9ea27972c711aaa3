"""What a norm computes, as data: its kind and its constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normlens.norms.fields import check_fields, complete_fields
from normlens.norms.kind import NormKind

__all__ = ["NormKind", "NormSpec"]


@dataclass(frozen=True)
class NormSpec:
    """Constants of one norm module.

    ``y = factor * (xhat * gamma + beta)`` with ``xhat = centre(x) / scale``, where
    ``centre(x) = x - mean(x)`` when ``centred`` and ``gamma = weight + 1`` when
    ``unit_offset``. The scale is, over the last axis of size d,

    * LAYER_NORM: ``sqrt(var(x) + eps)`` (biased variance)
    * RMS_NORM, SIMPLE_RMS_NORM: ``sqrt(mean(x**2) + eps)``; the latter has no gain
    * CRMS_NORM: ``sqrt((sum(x**2) + sum(x)**2) / (d + 1) + eps)``
    * L2_NORM, SCALE_NORM: ``max(||x||, eps)``; the latter has one gain for all elements
    * L1_NORM: ``sqrt(pi/2) * mean(|centre(x)|) + eps``
    * FIXED_SCALE: the constant ``fixed_scale``, or ``position_scales[i]`` at position i
    * IDENTITY: 1; OPAQUE: unknown, never invented
    * BATCH_NORM, POWER_NORM, UNIFIED_NORM in eval mode: 1, with gain and bias into which
      the running statistics are folded.

    Elementwise kinds have no scale: DYT has ``xhat = tanh(alpha x)`` and ELN has
    ``xhat = alpha x / sqrt(1 + (alpha x)**2 / d)``.

    Attributes:
        kind: the map.
        width: size of the normalised axis.
        eps: as read from the module, never from a config; None where the kind has none.
        centred: whether the mean over the axis is subtracted.
        unit_offset: whether the stored weight is ``gamma - 1`` (Gemma).
        gain: whether there is a weight.
        bias: whether there is an additive bias.
        fixed_scale: the constant denominator of FIXED_SCALE, else None.
        alpha: the slope at 0 of DYT or ELN, else None.
        eps_encoded: FIXED_SCALE stored as a LayerNorm with a huge eps (the public LN-free
            format); then ``fixed_scale = sqrt(eps)`` and the weight carries its inverse.
        compute_dtype: dtype the module normalises in, "input" for that of its input.
        factor: a constant on the output, gain and bias included (LayerNorm Scaling).
        position_scales: FIXED_SCALE's denominators by position, in the place of
            ``fixed_scale``; positions beyond take the last one.
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
    factor: float = 1.0
    position_scales: tuple[float, ...] | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any], width: int) -> NormSpec:
        """The spec of a norm in a config.

        ``eps`` and ``alpha`` may be left out and are then the kind's own
        (:data:`~normlens.norms.fields.DEFAULT_EPS`,
        :data:`~normlens.norms.fields.DEFAULT_ALPHA`); a LayerNorm is always centred.

        Args:
            fields: attributes of this class without ``width``; ``kind`` by its name.
            width: size of the normalised axis.

        Raises:
            UsageError: a field is unknown, out of range, missing, or not one of the kind.
        """
        return cls(width=width, **complete_fields(fields, _DEFAULTS))

    def check(self) -> None:
        """Whether the constants are ones that the kind has.

        Raises:
            UsageError: a field is out of range, missing, or not one of the kind.
        """
        check_fields({name: value for name, value in vars(self).items() if name != "width"})
        if self.width < 1:
            raise ValueError(f"a norm has width {self.width}")


_DEFAULTS: Mapping[str, Any] = {
    field.name: field.default
    for field in dataclasses.fields(NormSpec)
    if field.default is not dataclasses.MISSING
}
