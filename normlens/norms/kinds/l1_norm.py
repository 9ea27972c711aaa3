"""L1 normalization: the mean absolute value in the place of the root mean square.

    s = sqrt(pi / 2) * mean(|centred|) + eps

The constant makes ``s`` the standard deviation of Gaussian elements.
"""

from __future__ import annotations

import math
from functools import partial

from normlens.norms.kind import NormKind
from normlens.norms.kinds.row import Coupling, KindRow
from normlens.norms.maps import Column, ScaledMap, Wide
from normlens.norms.spec import NormSpec
from normlens.norms.token import TokenNorm

GAUSSIAN_RATIO = math.sqrt(math.pi / 2)
"""Standard deviation over mean absolute deviation of a Gaussian."""


class MeanAbsolute(ScaledMap):
    """``sqrt(pi / 2) * mean(|centred|) + eps``."""

    def scale(self, spec: NormSpec, centred: Wide) -> Column:
        """The scale of each token."""
        return GAUSSIAN_RATIO * centred.abs().mean(-1, keepdim=True) + (spec.eps or 0.0)

    def slope(self, spec: NormSpec, centred: Wide, c: Wide) -> Column:
        """``sqrt(pi / 2) * mean(sign(centred) * c)``; 0 for an element at its kink."""
        return GAUSSIAN_RATIO * (centred.sign() * c).mean(-1, keepdim=True)


MAP = MeanAbsolute()


ROW = KindRow(
    kind=NormKind.L1_NORM,
    title="L1 normalization",
    formula="y = c / s * gamma + beta, s = sqrt(pi/2) mean(|c|) + eps, c = x - mean(x) or x",
    source=(
        "Hoffer et al. 2018, Norm matters, 1803.01814, section on L1 batch norm, where the "
        "constant is from; over the elements of a token: Lin et al. 2020, 2009.08034"
    ),
    eps="added to the scale",
    couples=Coupling.TOKEN,
    annihilates="the all-ones direction where centred, exactly; the centred input, up to eps / s",
    remark="Has kinks: where an element crosses 0 (or the mean) the derivative jumps.",
    norm_map=MAP,
    make=partial(TokenNorm, norm_map=MAP),
)
