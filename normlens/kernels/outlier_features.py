"""The criterion of LLM.int8 from counts of tokens.

A layer counts for a dimension when at least ``position_share`` of the tokens reach the
threshold there, at one of the layer's inputs (attention or MLP); the dimension is an
outlier when at least ``layer_share`` of the layers count. Layers are those with an input
that the pass sees.

The paper (2208.07339, section 4) asks for a layer that one value of it reaches the
threshold, and for 6 % of the positions over all layers; with both shares in one layer the
answer does not grow with the number of tokens read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.kernels.outlier_views import View

CRITERIA = ("absolute", "relative")


@dataclass(frozen=True)
class Features:
    """One criterion on one token group in one basis.

    Attributes:
        layer_share: share of layers that count, per dimension.
        token_share: share of tokens that reach the threshold, mean over inputs.
        outlier: whether the dimension meets the criterion.
        n: tokens at each input.
    """

    layer_share: Float[Tensor, " d"]
    token_share: Float[Tensor, " d"]
    outlier: Tensor
    n: int

    def ranked(self, most: int) -> list[int]:
        """Every outlier, and as many of the next dimensions as ``most`` leaves room for.

        By layer share, then token share, then index; dimensions that no token reaches the
        threshold in are left out.
        """
        order = sorted(
            range(len(self.layer_share)),
            key=lambda j: (-float(self.layer_share[j]), -float(self.token_share[j]), j),
        )
        count = max(most, int(self.outlier.sum()))
        return [j for j in order[:count] if float(self.token_share[j]) > 0]


def judge(
    hits: Int[Tensor, "input d"],
    n: Int[Tensor, " input"],
    views: Sequence[View],
    *,
    layer_share: float,
    position_share: float,
) -> Features:
    """Apply the criterion to the inputs of one basis.

    Args:
        hits: tokens that reach the threshold, per input and dimension.
        n: tokens, per input.
        views: the inputs.
        layer_share: share of layers that must count.
        position_share: share of tokens for a layer to count.
    """
    share = hits.double() / n.double()[:, None]
    layers = [view.input.layer for view in views if view.input is not None]
    counting = torch.stack(
        [
            (share[[i for i, at in enumerate(layers) if at == layer]] >= position_share).any(0)
            for layer in sorted(set(layers))
        ]
    )
    of_layers = counting.double().mean(0)
    tokens = int(n.max())
    return Features(of_layers, share.mean(0), (of_layers >= layer_share) & (tokens > 0), tokens)
