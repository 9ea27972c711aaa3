"""CRMSNorm: the RMSNorm of a zero-mean vector whose last coordinate was dropped.

    s = sqrt((sum(x**2) + sum(x)**2) / (width + 1) + eps)

The dropped coordinate is ``-sum(x)``, so ``s`` is the root mean square of all ``width + 1``.
"""

from __future__ import annotations

from functools import partial

from normlens.norms.kind import NormKind
from normlens.norms.kinds.row import Coupling, KindRow
from normlens.norms.maps import Column, ScaledMap, Wide
from normlens.norms.spec import NormSpec
from normlens.norms.token import TokenNorm


class CompressedRootMeanSquare(ScaledMap):
    """The root mean square of ``[x, -sum(x)]``."""

    def scale(self, spec: NormSpec, centred: Wide) -> Column:
        """``sqrt((sum(x**2) + sum(x)**2) / (width + 1) + eps)``."""
        squares = centred.square().sum(-1, keepdim=True)
        dropped = centred.sum(-1, keepdim=True).square()
        return ((squares + dropped) / (spec.width + 1) + (spec.eps or 0.0)).sqrt()

    def slope(self, spec: NormSpec, centred: Wide, c: Wide) -> Column:
        """``(<x, c> + sum(x) sum(c)) / ((width + 1) s)``."""
        products = (centred * c).sum(-1, keepdim=True)
        dropped = centred.sum(-1, keepdim=True) * c.sum(-1, keepdim=True)
        return (products + dropped) / ((spec.width + 1) * self.scale(spec, centred))


MAP = CompressedRootMeanSquare()


ROW = KindRow(
    kind=NormKind.CRMS_NORM,
    title="CRMSNorm",
    formula="y = x / s * gamma, s = sqrt((sum(x^2) + sum(x)^2) / (d + 1) + eps)",
    source="Jiang et al. 2023, Pre-RMSNorm and Pre-CRMSNorm Transformers, 2305.14858, section 3",
    eps="under the root, added to the mean over d + 1 coordinates",
    couples=Coupling.TOKEN,
    annihilates="the input itself, up to eps / s^2",
    remark="d counts the coordinates that are kept; the one dropped is minus their sum.",
    norm_map=MAP,
    make=partial(TokenNorm, norm_map=MAP),
)
