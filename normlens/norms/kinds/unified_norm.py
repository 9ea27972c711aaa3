"""Unified normalization: quadratic means smoothed over a window of batches.

Per feature, with ``q`` the mean of squares of the batch, W the window, t the step from 1, and
g the gradient with respect to ``xhat``:

1. ``spread = var(sqrt(window))``, unbiased, over all entries of the window of past q, one
   number. Then q replaces the oldest entry.
2. Skip rule, from step ``warmup`` on: where ``AM - GM > W * spread`` for the arithmetic and
   geometric mean of the window in *any* feature, the batch is an outlier: the entry becomes
   the running mean of squares and the step is a skipped one.
3. ``s2 = q`` for ``t <= W``, before ``warmup`` and on skipped steps, else ``s2 = GM``.
   ``xhat = x / sqrt(s2 + eps)``.
4. ``r = sqrt(s2 + eps) / sqrt(running + eps)`` clamped to [1/5, 5], and 1 for
   ``t <= max(1000, warmup)`` and on skipped steps. Then ``running = m running + (1 - m) s2``.
5. Backward, with ``h = r g``: ``k = mean(h xhat)`` enters a window of its own (on skipped
   steps the average of 6 does); ``k`` is replaced by the window's mean under the condition
   of 3; ``average = m average + (1 - m) k``; ``dx = (h - average xhat) / sqrt(s2 + eps)``, on
   skipped steps with ``k`` for ``average``. The gradient of the gain is that of ``r xhat``.
   It is an approximation, not the derivative of 3.
6. Eval: ``xhat = x / sqrt(running + eps)``, whose ``running`` is the moving average of the
   geometric means.

As in the authors' code for translation; only ``skip_outliers`` is on by default here, which
that code suggests for images alone.

Source: Yang et al. 2022 (2208.01313), section 3.
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

UNCOMPENSATED_STEPS = 1000
"""Steps without gradient compensation, whatever the warm-up (the authors' code)."""

LARGEST_RATIO = 5.0
"""Bound of the gradient compensation, and the inverse of its lower bound."""


class UnifiedDivision(torch.autograd.Function):
    """``x / scale`` with the backward pass of unified normalization."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, ratio: Tensor, module: UnifiedNorm) -> Tensor:
        """``x / scale``."""
        xhat = x / scale
        ctx.save_for_backward(xhat, scale, ratio)
        ctx.module, ctx.step, ctx.direct = module, int(module.iterations), module.direct
        ctx.skipping = module.skipping
        return xhat

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """``(r g - average xhat) / scale``."""
        xhat, scale, ratio = ctx.saved_tensors
        module: UnifiedNorm = ctx.module
        h = gradients[0] * ratio
        k = (h * xhat).mean(0)
        window, average = module.gradient_window, module.gradient_average
        window[ctx.step % len(window)] = average if ctx.skipping else k.to(window.dtype)
        mean = k if ctx.direct else window.mean(0).to(k.dtype)
        move_average(average, mean, module.keep)
        used = mean if ctx.skipping else average.to(k.dtype)
        return (h - used * xhat) / scale, None, None, None


class GainGradient(torch.autograd.Function):
    """``xhat * weight``, whose weight's gradient is that of ``ratio * xhat``."""

    @staticmethod
    def forward(ctx: Any, xhat: Tensor, weight: Tensor, ratio: Tensor) -> Tensor:
        """``xhat * weight``."""
        ctx.save_for_backward(xhat, weight, ratio)
        return xhat * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """With the ratio in the weight's gradient alone."""
        xhat, weight, ratio = ctx.saved_tensors
        (g,) = gradients
        return g * weight, (g * ratio * xhat).sum(0), None


class UnifiedNorm(BatchNormModule):
    """Unified normalization over every axis but the last.

    Args:
        spec: of kind UNIFIED_NORM.
        window: number of batches, W.
        keep: m, weight of the past in the moving averages.
        warmup: steps by the batch's own statistics.
        skip_outliers: whether the skip rule holds.
    """

    running_square: Tensor
    window: Tensor
    gradient_window: Tensor
    gradient_average: Tensor
    skipped: Tensor

    def __init__(
        self,
        spec: NormSpec,
        window: int = 4,
        keep: float = 0.9,
        warmup: int = 4000,
        *,
        skip_outliers: bool = True,
    ) -> None:
        super().__init__(spec)
        self.keep, self.warmup, self.skip_outliers = keep, warmup, skip_outliers
        self.skipping = self.direct = False
        self.register_buffer("running_square", torch.ones(spec.width))
        self.register_buffer("window", torch.zeros(window, spec.width))
        self.register_buffer("gradient_window", torch.zeros(window, spec.width))
        self.register_buffer("gradient_average", torch.zeros(spec.width))
        self.register_buffer("skipped", torch.tensor(0))

    def running(self) -> tuple[None, Features]:
        """No mean; the running mean of squares."""
        return None, self.running_square

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Apply the map in float32 or wider; the result has the dtype of ``x``."""
        if not self.training or self.weight is None:
            return super().forward(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        self.iterations += 1
        flat = wide.reshape(-1, self.width)
        xhat, ratio = self._divide(flat)
        scaled = apply_function(GainGradient, xhat, self.weight.to(wide.dtype), ratio)
        y = scaled.reshape(x.shape)
        return (y if self.bias is None else y + self.bias.to(wide.dtype)).to(x.dtype)

    def normalise_batch(self, x: Float[Tensor, "token width"]) -> Float[Tensor, "token width"]:
        """By the geometric mean of the window, or the batch's own quadratic mean."""
        return self._divide(x)[0]

    def _divide(self, x: Float[Tensor, "token width"]) -> tuple[Tensor, Features]:
        step = int(self.iterations)
        square = x.detach().square().mean(0)
        self._observe(square, step)
        few = step <= len(self.window) or step < self.warmup
        self.direct = few or self.skipping
        used = square if self.direct else self.window.log().mean(0).exp().to(x.dtype)
        scale = (used + self.eps).sqrt()
        ratio = torch.ones_like(scale)
        if step > max(UNCOMPENSATED_STEPS, self.warmup) and not self.skipping:
            running = (self.running_square.to(x.dtype) + self.eps).sqrt()
            ratio = (scale / running).clamp(1 / LARGEST_RATIO, LARGEST_RATIO)
        xhat = apply_function(UnifiedDivision, x, scale, ratio, self)
        move_average(self.running_square, used, self.keep)
        return xhat, ratio

    def _observe(self, square: Features, step: int) -> None:
        """Put the batch's mean of squares into the window, or skip it."""
        size = len(self.window)
        spread = self.window.sqrt().var()
        self.window[step % size] = square.to(self.window.dtype)
        self.skipping = size == 1
        if not self.skip_outliers or step < self.warmup:
            return
        gap = self.window.mean(0) - self.window.log().mean(0).exp()
        if bool((gap > size * spread).any()):
            self.window[step % size] = self.running_square
            self.skipping = True
            self.skipped += 1


ROW = KindRow(
    kind=NormKind.UNIFIED_NORM,
    title="Unified normalization",
    formula=(
        "y_i = x_i / sqrt(q_i + eps) * gamma_i + beta_i, q the geometric mean of the last "
        "batches' means of squares, in eval mode its moving average"
    ),
    source=(
        "Yang et al. 2022, Unified Normalization for Accelerating and Stabilizing Transformers, "
        "2208.01313, section 3"
    ),
    eps="under the root, added to the mean of squares (the authors' code)",
    couples=Coupling.BATCH,
    annihilates="none",
    remark=(
        "Its backward pass is an approximation, not the derivative. A batch that is an outlier "
        "leaves the window untouched. Affine in eval mode."
    ),
    norm_map=MAP,
    make=UnifiedNorm,
)
