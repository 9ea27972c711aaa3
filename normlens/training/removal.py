"""Removing the scale of every LayerNorm of a GPT-2-type model while it trains.

1. Every norm becomes a :class:`RemovableNorm` that still divides by the live scale and
   keeps an exponential moving average of the mean scale over all tokens.
2. At the step its schedule names, a norm's average is frozen and used as the divisor.
   The attention norms freeze their q/k path first and their v path later, both with the
   value frozen first.
3. When all are frozen the modules are exchanged for :class:`FixedScale`.

Source: 2507.02559 (recipe and schedule), 2409.13710 (FakeLN).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2LMHeadModel, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from normlens.errors import NotApplicable
from normlens.models.detect import HUGE_EPS
from normlens.norms.fixed_scale import FixedScale
from normlens.training.recipe import Removal


class RemovableNorm(nn.Module):
    """A LayerNorm whose divisor can be fixed, for q/k and v separately.

    With ``split`` the output is ``[y_qk, y_v]`` along the last axis, for
    :class:`SplitProjection`; without it only the ``qk`` switch exists.
    """

    average: Tensor

    def __init__(self, norm: nn.LayerNorm, *, split: bool) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight, self.bias = norm.weight, norm.bias
        self.split = split
        self.frozen = False
        self.frozen_v = False
        self.observed: Tensor | None = None
        self.register_buffer("average", torch.tensor(float("nan")))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch out"]:
        """Normalise with the live or the frozen scale."""
        centred = x - x.mean(-1, keepdim=True)
        live = (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()
        self.observed = live.detach().mean()
        first = self._affine(centred / (self.average if self.frozen else live))
        if not self.split:
            return first
        if self.frozen == self.frozen_v:
            return torch.cat([first, first], -1)
        return torch.cat([first, self._affine(centred / live)], -1)

    def _affine(self, xhat: Tensor) -> Tensor:
        return xhat * self.weight + self.bias

    def update_average(self, decay: float) -> None:
        """Take the last forward's mean scale into the average, unless frozen."""
        if self.frozen or self.observed is None:
            return
        if torch.isnan(self.average):
            self.average.copy_(self.observed)
        else:
            self.average.mul_(decay).add_(self.observed, alpha=1 - decay)

    def fixed(self) -> FixedScale:
        """The FixedScale this norm has become."""
        module = FixedScale(self.weight.shape[0], self.average.item())
        module.weight, module.bias = self.weight, self.bias
        return module


class SplitProjection(nn.Module):
    """The fused q,k,v projection fed with ``[y_qk, y_v]``."""

    def __init__(self, projection: Conv1D) -> None:
        super().__init__()
        self.weight, self.bias = projection.weight, projection.bias

    def forward(self, y: Float[Tensor, "batch pos two_width"]) -> Float[Tensor, "batch pos qkv"]:
        """Project to q and k from the first half, to v from the second."""
        y_qk, y_v = y.chunk(2, -1)
        width = y_v.shape[-1]
        w_qk, w_v = self.weight[:, : 2 * width], self.weight[:, 2 * width :]
        b_qk, b_v = self.bias[: 2 * width], self.bias[2 * width :]
        qk = functional.linear(y_qk, w_qk.T, b_qk)
        return torch.cat([qk, functional.linear(y_v, w_v.T, b_v)], -1)


class NormRemoval:
    """Drives the removal of one model by a schedule; its only memory is the averages.

    Args:
        model: a GPT-2-type model with live LayerNorms; its norms are exchanged in place.
        plan: the schedule.

    Raises:
        NotApplicable: another architecture, or a norm that is no live LayerNorm.
    """

    def __init__(self, model: PreTrainedModel, plan: Removal) -> None:
        layers = removable_layers(model)
        self.model = model
        self.plan = plan
        blocks = [f"transformer.h.{layer}" for layer in range(layers)]
        self._attention = {f"{block}.ln_1": self._removable(f"{block}.ln_1") for block in blocks}
        self._mlp = {f"{block}.ln_2": self._removable(f"{block}.ln_2") for block in blocks}
        self._final = {"transformer.ln_f": self._removable("transformer.ln_f")}
        self._projections = {f"{block}.attn.c_attn": _projection(model, block) for block in blocks}
        for path, projection in self._projections.items():
            model.set_submodule(path, SplitProjection(projection))

    def advance(self, step: int) -> int:
        """Set the switches that hold at ``step``; returns how many scales are still live."""
        plan = self.plan
        for layer, norm in enumerate(self._mlp.values()):
            norm.frozen = step >= plan.mlp.step(layer)
        for layer, norm in enumerate(self._attention.values()):
            norm.frozen = step >= plan.qk.step(layer)
            norm.frozen_v = step >= plan.v.step(layer)
        for norm in self._final.values():
            norm.frozen = step >= plan.final_step
        return sum(
            (not norm.frozen) + (norm.split and not norm.frozen_v)
            for norm in self._norms().values()
        )

    def observe(self) -> None:
        """Update the averages from the last forward pass."""
        for norm in self._norms().values():
            norm.update_average(self.plan.ema)

    def finish(self) -> None:
        """Exchange every norm for its FixedScale and give the projections back."""
        for path, norm in self._norms().items():
            self.model.set_submodule(path, norm.fixed())
        for path, projection in self._projections.items():
            self.model.set_submodule(path, projection)

    def _norms(self) -> dict[str, RemovableNorm]:
        return {**self._attention, **self._mlp, **self._final}

    def _removable(self, path: str) -> RemovableNorm:
        norm = self.model.get_submodule(path)
        assert isinstance(norm, nn.LayerNorm)
        removable = RemovableNorm(norm, split=path.endswith(".ln_1"))
        self.model.set_submodule(path, removable)
        return removable


def removable_layers(model: PreTrainedModel) -> int:
    """Number of blocks of a model whose norms can be removed.

    Raises:
        NotApplicable: the removal is not known to work on this model; says why.
    """
    name = type(model).__name__
    if not isinstance(model, GPT2LMHeadModel):
        raise NotApplicable(
            f"norm removal handles GPT-2-type models with LayerNorm, not {name}: no recipe "
            "that removes the scales of a pretrained RMSNorm model is known; use a GPT-2-type model"
        )
    if model.config.add_cross_attention:
        raise NotApplicable(
            "norm removal handles decoders, and this model has cross-attention norms; "
            "use a model without add_cross_attention"
        )
    for path, module in model.named_modules():
        fixed = isinstance(module, FixedScale)
        if fixed or (isinstance(module, nn.LayerNorm) and module.eps >= HUGE_EPS):
            raise NotApplicable(
                f"the scale of {path} is a constant already; start from the model with live norms"
            )
    return len(model.transformer.h)


def _projection(model: PreTrainedModel, block: str) -> Conv1D:
    projection = model.get_submodule(f"{block}.attn.c_attn")
    assert isinstance(projection, Conv1D)
    return projection
