"""An input-output curve as sums over fixed bins of the input.

A bin is a sign of ``x`` and an eighth of an octave of ``|x|``: eight equal parts between two
powers of 2, so a bin is 6.7 % to 12.5 % wide. The bin of a number is read off the bits of its
float32 form (sign, exponent, first three of the mantissa). Bins reach from ``2**-14`` to
``2**18``; what lies outside is in the first and last one.

Per bin the sums of 1, x, x**2, y, y**2 and x*y in float64, which add up over batches. From
them the straight line of least squares is exact, and so is the mean of any function over the
bin up to third order in ``x - mean x``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

PER_OCTAVE = 8
LOWEST_OCTAVE, HIGHEST_OCTAVE = -14, 18
MAGNITUDES = PER_OCTAVE * (HIGHEST_OCTAVE - LOWEST_OCTAVE)
"""Bins of one sign."""
SUMS = ("n", "x", "xx", "y", "yy", "xy")

_MANTISSA_BITS, _EXPONENT_BIAS, _KEPT_BITS = 23, 127, 3
_CODES = 2048
# Elements at a time: what is made of them stays in the processor's cache.
_CHUNK = 2**15
_FIRST_CODE = PER_OCTAVE * (LOWEST_OCTAVE + _EXPONENT_BIAS)


def curve_sums(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "2 bin sum"]:
    """The sums of finite pairs: sign (negative first) by bin of ``|x|`` by :data:`SUMS`."""
    by_code = torch.zeros(len(SUMS), 2 * _CODES, dtype=torch.float64, device=x.device)
    for part, outputs in zip(x.flatten().split(_CHUNK), y.flatten().split(_CHUNK), strict=True):
        _add_chunk(by_code, part, outputs.double())
    by_code = by_code.T.unflatten(0, (2, _CODES))
    stop = _FIRST_CODE + MAGNITUDES
    kept = by_code[:, _FIRST_CODE:stop].clone()
    kept[:, 0] += by_code[:, :_FIRST_CODE].sum(1)
    kept[:, -1] += by_code[:, stop:].sum(1)
    return kept


def _add_chunk(by_code: Tensor, x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> None:
    bits = x.float().view(torch.int32)
    # The sign bit makes negative numbers sort below positive ones, as an int32.
    code = (bits >> (_MANTISSA_BITS - _KEPT_BITS)).long() + _CODES
    x = x.double()
    for sums, values in zip(by_code, (torch.ones_like(x), x, x * x, y, y * y, x * y), strict=True):
        sums.scatter_add_(0, code, values)


def bin_edges() -> NDArray[np.float64]:
    """Lower edges of the bins of ``|x|`` and the upper edge of the last; the first is 0."""
    octave, part = np.divmod(np.arange(MAGNITUDES + 1), PER_OCTAVE)
    edges = 2.0 ** (octave + LOWEST_OCTAVE) * (1 + part / PER_OCTAVE)
    edges[0] = 0.0
    return edges


@dataclass(frozen=True)
class Curve:
    """The sums of a curve, or of some of its bins.

    Attributes:
        sums: sign by bin of ``|x|`` by :data:`SUMS`; an empty bin is all 0.
    """

    sums: Float[Tensor, "2 bin sum"]

    @property
    def n(self) -> int:
        """Number of elements."""
        return int(self.sums[..., 0].sum())

    @property
    def totals(self) -> dict[str, float]:
        """The sums over all bins, by name."""
        return dict(zip(SUMS, self.sums.sum((0, 1)).tolist(), strict=True))

    @property
    def bins(self) -> dict[str, NDArray[np.float64]]:
        """The sums of the bins with elements, by name, from the most negative to the largest."""
        negative, positive = self.sums
        ordered = torch.cat([negative.flip(0), positive]).numpy()
        ordered = ordered[ordered[:, 0] > 0]
        return dict(zip(SUMS, ordered.T, strict=True))

    @property
    def counts(self) -> NDArray[np.float64]:
        """Elements in every bin of ``|x|``, both signs together."""
        return self.sums[..., 0].sum(0).numpy()

    @property
    def magnitudes(self) -> NDArray[np.float64]:
        """Sum of ``|x|`` in every bin of ``|x|``."""
        return (self.sums[1, :, 1] - self.sums[0, :, 1]).numpy()

    @property
    def outputs(self) -> NDArray[np.float64]:
        """Sum of ``y sign(x)`` in every bin of ``|x|``: the odd part of the curve."""
        return (self.sums[1, :, 3] - self.sums[0, :, 3]).numpy()

    def within(self, chosen: NDArray[np.bool_]) -> Curve:
        """The same with all other bins of ``|x|`` emptied."""
        mask = torch.from_numpy(chosen)[None, :, None]
        return Curve(torch.where(mask, self.sums, 0.0))
