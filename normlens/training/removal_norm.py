"""A norm on its way to losing its scale: live, frozen, or live for some readers only.

    y = f (centre(x) / s * gamma + beta),   s = sqrt(mean(centre(x)**2) + eps)  or a constant

with a factor f that is 1 but for LayerNorm Scaling. The constant is an exponential moving
average (EMA) of the mean of ``s`` over every token of a step, the first position included, and
over heads where each is normalised by itself. It is taken until the first reader is frozen.

Source: 2507.02559 (FakeLN and its EMA, which treats the first position as any other) and
2409.13710.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn

from normlens.norms import FixedScale, NormSpec, ScaledNorm


class RemovableNorm(nn.Module):
    """A LayerNorm or RMSNorm whose divisor can be fixed, for each of its readers by itself.

    With more than one reader the output is one view for each, ``[y_0 y_1 ...]`` along the
    last axis, for the projections of :mod:`normlens.training.removal_views`. Parameters keep
    their names, so a checkpoint looks the same before and after.

    Args:
        norm: the module to take the parameters from.
        spec: what it computes; a LayerNorm or RMSNorm.
        views: number of readers.
        anchored: whether to hold a target for the scale-anchor loss (the final norm).
        apart: whether the first position has a constant of its own; positions are then the
            axis of the input before the last.

    Attributes:
        frozen: by reader, whether it divides by the constant.
        average: the EMA, a scalar in the units of ``x``, or that of the first position and of
            the others; NaN before the first step.
        anchor: target of the scale-anchor loss, NaN until set; only where ``anchored``.
    """

    average: Tensor
    anchor: Tensor

    def __init__(
        self,
        norm: nn.Module,
        spec: NormSpec,
        *,
        views: int = 1,
        anchored: bool = False,
        apart: bool = False,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.weight = norm.get_parameter("weight") if spec.gain else None
        self.bias = norm.get_parameter("bias") if spec.bias else None
        self.frozen = [False] * views
        self._observed: list[Tensor] = []
        device = next(norm.parameters(), torch.empty(0)).device
        unknown = torch.full((2,) if apart else (), float("nan"), device=device)
        self.register_buffer("average", unknown)
        if anchored:
            self.register_buffer("anchor", torch.tensor(float("nan"), device=device))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch out"]:
        """Normalise, in float32 or wider; the result has the dtype of ``x``."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        centred = wide - wide.mean(-1, keepdim=True) if self.spec.centred else wide
        by_state: dict[bool, Tensor] = {}
        if not all(self.frozen):
            live = (centred.square().mean(-1, keepdim=True) + (self.spec.eps or 0.0)).sqrt()
            if self.training:
                self._observed.append(self._mean(live.detach()))
            by_state[False] = self._affine(centred / live)
        if any(self.frozen):
            by_state[True] = self._affine(centred / self._constant(centred.shape[-2]))
        views = [by_state[state] for state in self.frozen]
        return (views[0] if len(views) == 1 else torch.cat(views, -1)).to(x.dtype)

    def update_average(self, decay: float) -> None:
        """Take the mean scale of the forward passes since the last call into the average.

        Nothing happens once a reader is frozen. A forward pass that is repeated (gradient
        checkpointing) counts twice and moves nothing; replicas of the model average theirs.
        """
        observed, self._observed = self._observed, []
        if any(self.frozen) or not observed:
            return
        mean = torch.stack(observed).mean(0) if len(observed) > 1 else observed[0]
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(mean)
            mean = mean / distributed.get_world_size()
        if self.average.isnan().any():
            self.average.copy_(mean)
        else:
            self.average.mul_(decay).add_(mean, alpha=1 - decay)

    def fixed(self) -> FixedScale | ScaledNorm:
        """The FixedScale this norm has become; a gain stored as an offset is stored whole.

        A constant factor (LayerNorm Scaling) stays around it.
        """
        spec = self.spec
        module = FixedScale(
            spec.width,
            self.average.item() if self.average.ndim == 0 else tuple(self.average.tolist()),
            centred=spec.centred,
            gain=self.weight is not None,
            bias=self.bias is not None,
        )
        module.weight = self.weight
        if self.weight is not None and spec.unit_offset:
            module.weight = nn.Parameter(self.weight.detach() + 1)
        module.bias = self.bias
        module.scale = module.scale.to(self.average.device)
        module.train(self.training)
        return module if spec.factor == 1.0 else ScaledNorm(module, spec.factor)

    def _mean(self, live: Float[Tensor, "*batch 1"]) -> Tensor:
        if self.average.ndim == 0:
            return live.mean()
        return torch.stack([live[..., :1, :].mean(), live[..., 1:, :].mean()])

    def _constant(self, positions: int) -> Tensor:
        if self.average.ndim == 0:
            return self.average
        later = (torch.arange(positions, device=self.average.device) > 0).long()
        return self.average[later].unsqueeze(-1)

    def _affine(self, xhat: Tensor) -> Tensor:
        if self.weight is not None:
            xhat = xhat * (self.weight + 1 if self.spec.unit_offset else self.weight)
        y = xhat if self.bias is None else xhat + self.bias
        return y if self.spec.factor == 1.0 else y * self.spec.factor
