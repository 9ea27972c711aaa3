"""The kinds of norm, and what follows from the kind alone."""

from __future__ import annotations

from enum import StrEnum


class NormKind(StrEnum):
    """The map between a norm's input and output.

    :data:`normlens.norms.KINDS` has a row of facts for each but OPAQUE. What is said here of
    the batch kinds holds in eval mode, where their statistics are constants.
    """

    LAYER_NORM = "layer_norm"
    RMS_NORM = "rms_norm"
    CRMS_NORM = "crms_norm"
    SCALE_NORM = "scale_norm"
    SIMPLE_RMS_NORM = "simple_rms_norm"
    L1_NORM = "l1_norm"
    L2_NORM = "l2_norm"
    BATCH_NORM = "batch_norm"
    POWER_NORM = "power_norm"
    UNIFIED_NORM = "unified_norm"
    DYT = "dyt"
    ELN = "eln"
    FIXED_SCALE = "fixed_scale"
    IDENTITY = "identity"
    OPAQUE = "opaque"

    @property
    def linear(self) -> bool:
        """Whether the map is affine in its input (no scale that depends on it)."""
        return self in _LINEAR

    @property
    def elementwise(self) -> bool:
        """Whether each element of the output depends on that element of the input alone."""
        return self in _ELEMENTWISE

    @property
    def has_scale(self) -> bool:
        """Whether there is a denominator per token, live or constant, and it is known.

        That of a batch kind is 1: what it divides each feature by is part of its gain.
        """
        return self in _LIVE or self in _LINEAR

    @property
    def has_live_scale(self) -> bool:
        """Whether each token is divided by a statistic of itself."""
        return self in _LIVE

    @property
    def quadratic(self) -> bool:
        """Whether the scale is a function of ``mean(centred**2)`` alone, maybe constant.

        Not so where a FIXED_SCALE has a constant per position.
        """
        return self.has_scale and self not in (NormKind.CRMS_NORM, NormKind.L1_NORM)

    @property
    def eps_under_root(self) -> bool:
        """Whether the scale is ``sqrt(mean(centred**2) + eps)``.

        Then an eps that dwarfs the mean square makes it constant.
        """
        return self in (NormKind.LAYER_NORM, NormKind.RMS_NORM, NormKind.SIMPLE_RMS_NORM)

    @property
    def has_eps(self) -> bool:
        """Whether a guard against division by zero is part of the formula."""
        return self in _LIVE or self in _BATCH

    @property
    def has_alpha(self) -> bool:
        """Whether there is a slope at 0, one number for all elements (DyT, ELN)."""
        return self in _CURVED

    @property
    def batch_coupled(self) -> bool:
        """Whether tokens of a batch depend on one another in training mode."""
        return self in _BATCH


_LIVE = frozenset(
    {
        NormKind.LAYER_NORM,
        NormKind.RMS_NORM,
        NormKind.CRMS_NORM,
        NormKind.SCALE_NORM,
        NormKind.SIMPLE_RMS_NORM,
        NormKind.L1_NORM,
        NormKind.L2_NORM,
    }
)
_BATCH = frozenset({NormKind.BATCH_NORM, NormKind.POWER_NORM, NormKind.UNIFIED_NORM})
_CURVED = frozenset({NormKind.DYT, NormKind.ELN})
_LINEAR = _BATCH | {NormKind.FIXED_SCALE, NormKind.IDENTITY}
_ELEMENTWISE = _BATCH | _CURVED | {NormKind.IDENTITY}
