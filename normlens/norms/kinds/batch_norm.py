"""BatchNorm: each feature centred and divided by its standard deviation over the batch.

Training: ``xhat = (x - mean_B) / sqrt(var_B + eps)`` with the biased variance over all
tokens; the running mean and the running unbiased variance follow with ``momentum``. Eval: the
running ones in their place. This is torch's BatchNorm1d for a feature axis that is the last.

Source: Ioffe & Szegedy 2015 (1502.03167), algorithms 1 and 2.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.norms.batch import BatchNormModule, Features, move_average
from normlens.norms.kind import NormKind
from normlens.norms.kinds.row import Coupling, KindRow
from normlens.norms.maps import Constant
from normlens.norms.spec import NormSpec

MAP = Constant()


class BatchNorm(BatchNormModule):
    """BatchNorm over every axis but the last.

    Args:
        spec: of kind BATCH_NORM.
        momentum: weight of the newest batch in the running statistics.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, spec: NormSpec, momentum: float = 0.1) -> None:
        super().__init__(spec)
        self.momentum = momentum
        self.register_buffer("running_mean", torch.zeros(spec.width))
        self.register_buffer("running_var", torch.ones(spec.width))

    def running(self) -> tuple[Features, Features]:
        """Running mean and running variance."""
        return self.running_mean, self.running_var

    def normalise_batch(self, x: Float[Tensor, "token width"]) -> Float[Tensor, "token width"]:
        """By mean and biased variance of the batch.

        Raises:
            ValueError: there is a single token.
        """
        if len(x) < 2:
            raise ValueError("batch statistics need more than one token in training mode")
        mean = x.mean(0)
        centred = x - mean
        variance = centred.square().mean(0)
        move_average(self.running_mean, mean, 1 - self.momentum)
        unbiased = variance * (len(x) / (len(x) - 1))
        move_average(self.running_var, unbiased, 1 - self.momentum)
        return centred / (variance + self.eps).sqrt()


ROW = KindRow(
    kind=NormKind.BATCH_NORM,
    title="BatchNorm",
    formula="y_i = (x_i - m_i) / sqrt(v_i + eps) * gamma_i + beta_i, m and v per feature",
    source="Ioffe & Szegedy 2015, Batch Normalization, 1502.03167, algorithms 1 and 2",
    eps="under the root, added to the variance (torch)",
    couples=Coupling.BATCH,
    annihilates="none in eval mode; in training a shift of a feature at all tokens, exactly",
    remark=(
        "In training a token sees the statistics of later tokens. Affine in eval mode: what is "
        "analysed is that map, with the running statistics folded into gain and bias."
    ),
    norm_map=MAP,
    make=BatchNorm,
)
