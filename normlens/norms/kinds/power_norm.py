"""PowerNorm: a running quadratic mean per feature, and a gradient that makes up for it.

With ``psi2`` the running mean of squares, ``psi2_B`` that of the batch and g the gradient
of the loss with respect to ``xhat``, everything per feature:

1. Forward: ``xhat = x / sqrt(psi2 + eps)``; then ``psi2 = a psi2 + (1 - a) psi2_B``.
2. Backward: ``dx = (g - nu xhat) / sqrt(psi2 + eps)`` with the psi2 of the forward pass; then
   ``nu = nu (1 - (1 - a') mean(xhat**2)) + (1 - a') mean(g xhat)``. It is not the derivative
   of 1: ``nu`` stands for the gradient that ran through the statistics of past batches.
3. The first ``warmup`` steps divide by the batch's own ``psi2_B`` (also in 2), and psi2 is
   the plain mean of the batches so far.
4. Eval: ``xhat = x / sqrt(psi2 + eps)``.

This is algorithm 2 of the paper (PN) with the warm-up of the authors' code. It differs from
that code in three ways: the code also divides each token by its root mean square before 1
(group scaling), which would make the map live and is left out here; the code divides by
psi2_B in 2, the paper and this module by what the forward pass divided by; and during warm-up
the code mixes a moving average into the plain mean.

Source: Shen et al. 2020 (2003.07845), algorithm 2.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.norms.batch import BatchNormModule, Features, apply_function, move_average
from normlens.norms.kind import NormKind
from normlens.norms.kinds.row import Coupling, KindRow
from normlens.norms.maps import Constant
from normlens.norms.spec import NormSpec

MAP = Constant()


class PowerDivision(torch.autograd.Function):
    """``x / scale`` with the backward pass of PowerNorm, which updates ``nu`` in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, nu: Tensor, keep: float) -> Tensor:
        """``x / scale``."""
        xhat = x / scale
        ctx.save_for_backward(xhat, scale)
        ctx.nu, ctx.keep = nu, keep
        return xhat

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """``(g - nu xhat) / scale``."""
        xhat, scale = ctx.saved_tensors
        nu: Tensor = ctx.nu
        rest = 1 - ctx.keep
        (g,) = gradients
        dx = (g - nu.to(g.dtype) * xhat) / scale
        shrink = 1 - rest * xhat.square().mean(0)
        nu.copy_(nu * shrink.to(nu.dtype) + (rest * (g * xhat).mean(0)).to(nu.dtype))
        return dx, None, None, None


class PowerNorm(BatchNormModule):
    """PowerNorm over every axis but the last.

    Args:
        spec: of kind POWER_NORM.
        keep: a, weight of the past in the running quadratic mean.
        keep_gradient: a', weight of the past in ``nu``.
        warmup: steps that divide by the batch's own quadratic mean.
    """

    running_square: Tensor
    nu: Tensor

    def __init__(
        self, spec: NormSpec, keep: float = 0.9, keep_gradient: float = 0.9, warmup: int = 10_000
    ) -> None:
        super().__init__(spec)
        self.keep, self.keep_gradient, self.warmup = keep, keep_gradient, warmup
        self.register_buffer("running_square", torch.ones(spec.width))
        self.register_buffer("nu", torch.zeros(spec.width))

    def running(self) -> tuple[None, Features]:
        """No mean; the running mean of squares."""
        return None, self.running_square

    def normalise_batch(self, x: Float[Tensor, "token width"]) -> Float[Tensor, "token width"]:
        """By the running quadratic mean, or the batch's own during warm-up."""
        step = int(self.iterations)
        square = x.detach().square().mean(0)
        warm = step > self.warmup
        used = self.running_square.to(x.dtype) if warm else square
        xhat = apply_function(
            PowerDivision, x, (used + self.eps).sqrt(), self.nu, self.keep_gradient
        )
        move_average(self.running_square, square, self.keep if warm else (step - 1) / step)
        return xhat


ROW = KindRow(
    kind=NormKind.POWER_NORM,
    title="PowerNorm",
    formula="y_i = x_i / sqrt(psi_i^2 + eps) * gamma_i + beta_i, psi^2 a running mean of squares",
    source="Shen et al. 2020, PowerNorm, 2003.07845, algorithm 2",
    eps="under the root, added to the mean of squares (the authors' code)",
    couples=Coupling.BATCH,
    annihilates="none",
    remark=(
        "Its backward pass is an approximation, not the derivative. The authors' group scaling "
        "is left out. Affine in eval mode."
    ),
    norm_map=MAP,
    make=PowerNorm,
)
