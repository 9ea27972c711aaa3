"""Projections that read one view each of what a :class:`RemovableNorm` gives.

A norm before attention feeds queries and keys, values, and in a parallel block the MLP too.
Each of them has a switch of its own, so the norm's output holds one view per switch side by
side and a projection takes its own. Parameters keep their names.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D


class ViewProjection(nn.Module):
    """A linear that reads view ``index`` of ``views``."""

    def __init__(self, linear: nn.Linear, index: int, views: int) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.index, self.views = index, views

    def forward(self, y: Float[Tensor, "*batch views_width"]) -> Float[Tensor, "*batch out"]:
        """Project the view."""
        return functional.linear(y.chunk(self.views, -1)[self.index], self.weight, self.bias)


class FusedProjection(nn.Module):
    """A fused q,k,v projection that makes q and k from one view and v from the next.

    Args:
        linear: the projection.
        index: of the view for q and k; that for v follows it.
        views: how many there are.
        order: of its outputs, as in :class:`~normlens.models.families.Family`.
        heads: number of query heads.
        kv_heads: number of key-value heads.
    """

    def __init__(
        self,
        linear: nn.Linear | Conv1D,
        index: int,
        views: int,
        *,
        order: Literal["blocks", "groups"],
        heads: int,
        kv_heads: int,
    ) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.index, self.views = index, views
        self.grouped = order == "groups"
        self.transposed = isinstance(linear, Conv1D)
        # Per key-value head: its queries, one key and one value, each of the head's width.
        self.rows = heads // kv_heads + 2
        self.groups = kv_heads

    def forward(self, y: Float[Tensor, "*batch views_width"]) -> Float[Tensor, "*batch qkv"]:
        """Project to q, k and v in the order of the fused projection."""
        views = y.chunk(self.views, -1)
        weight = self.weight.T if self.transposed else self.weight
        w_qk, w_v = self._parts(weight)
        b_qk, b_v = (None, None) if self.bias is None else self._parts(self.bias)
        qk = functional.linear(views[self.index], w_qk, b_qk)
        v = functional.linear(views[self.index + 1], w_v, b_v)
        if not self.grouped:
            return torch.cat([qk, v], -1)
        qk = qk.unflatten(-1, (self.groups, self.rows - 1, -1))
        v = v.unflatten(-1, (self.groups, 1, -1))
        return torch.cat([qk, v], -2).flatten(-3)

    def _parts(self, parameter: Tensor) -> tuple[Tensor, Tensor]:
        """The rows that make q and k, and those that make v."""
        if self.grouped:
            by_group = parameter.unflatten(0, (self.groups, self.rows, -1))
            return by_group[:, :-1].flatten(0, 2), by_group[:, -1].flatten(0, 1)
        values = len(parameter) // (self.groups * self.rows) * self.groups
        return parameter[:-values], parameter[-values:]
