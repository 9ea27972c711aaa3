"""One module for the kinds that divide each token by a statistic of itself."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from normlens.norms.maps import NormMap
from normlens.norms.module import NormModule
from normlens.norms.spec import NormSpec


class TokenNorm(NormModule):
    """A token-wise norm that evaluates the map of its kind.

    Also a LayerNorm or RMSNorm in the forms that torch lacks: a gain that is stored as an
    offset from 1, an RMSNorm with a bias, a LayerNorm with a bias but no gain.

    Args:
        spec: of a kind with a live scale.
        norm_map: what the kind computes.
    """

    def __init__(self, spec: NormSpec, norm_map: NormMap) -> None:
        super().__init__(spec)
        self.norm_map = norm_map

    def normalise(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Centre where the spec says so, then divide."""
        if self.built_spec.centred:
            x = x - x.mean(-1, keepdim=True)
        return self.norm_map.xhat(self.built_spec, x)

    def extra_repr(self) -> str:
        """Kind, width and constants, for ``print(model)``."""
        return f"{self.built_spec.kind.value}, {super().extra_repr()}"
