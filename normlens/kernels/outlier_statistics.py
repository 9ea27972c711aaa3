"""The statistics of ``outliers`` by what their axes mean."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.capture.protocol import Context
from normlens.capture.state import State
from normlens.kernels.outlier_features import Features, judge
from normlens.kernels.outlier_views import Basis, View, views

GROUPS = ("first", "rest")


@dataclass(frozen=True)
class Statistics:
    """The State of ``outliers`` with what each axis means."""

    state: State
    context: Context

    @cached_property
    def views(self) -> tuple[View, ...]:
        """The view axis."""
        return views(self.context.lens, rotate=self.context.parameters.rotate)

    @cached_property
    def points(self) -> tuple[View, ...]:
        """The point axis: the residual stream in the native basis."""
        return tuple(v for v in self.views if v.residual and v.basis is Basis.NATIVE)

    @cached_property
    def points_missing(self) -> bool:
        """Whether the residual stream is not seen in some basis."""
        return any(view.missing for view in self.views if view.residual)

    @cached_property
    def inputs(self) -> tuple[View, ...]:
        """The input axis of the hits."""
        return tuple(view for view in self.views if view.input is not None)

    @cached_property
    def n(self) -> Int[Tensor, "2 point"]:
        """Tokens of each group at each point of the residual stream."""
        return self.tensor("n")[:, [self.views.index(view) for view in self.points]]

    @cached_property
    def overflow(self) -> Int[Tensor, "2 point"]:
        """Tokens with a value that is not finite."""
        return self.tensor("overflow")[:, [self.views.index(view) for view in self.points]]

    @cached_property
    def shares(self) -> Float[Tensor, "2 point d"]:
        """Share of every dimension in the mean square of the residual stream."""
        raw = self.tensor("raw")
        return raw / raw.sum(-1, keepdim=True)

    def tensor(self, name: str) -> Tensor:
        """A statistic by name."""
        return self.state.tensors[name]

    def features(self, basis: Basis, criterion: int, group: int) -> Features | None:
        """The LLM.int8 criterion; None where no input is seen in that basis."""
        at = [i for i, v in enumerate(self.inputs) if v.basis is basis and not v.missing]
        if not at:
            return None
        chosen = [self.inputs[i] for i in at]
        n = self.tensor("n")[group, [self.views.index(view) for view in chosen]]
        parameters = self.context.parameters
        return judge(
            self.tensor("hits")[criterion, group, at],
            n,
            chosen,
            layer_share=parameters.layer_share,
            position_share=parameters.position_share,
        )

    def top_dimensions(self, group: int) -> list[int]:
        """Dimensions with the largest mean share over depths, and all massive ones."""
        share = self.shares[group].mean(0)
        top = torch.argsort(share, descending=True, stable=True)
        top = top[: self.context.parameters.top].tolist()
        massive = self.tensor("massive")[group].sum(0).nonzero().flatten().tolist()
        return [*top, *(j for j in massive if j not in top)]

    @cached_property
    def bases(self) -> tuple[Basis, ...]:
        """Bases that the pass looked in."""
        return tuple(dict.fromkeys(view.basis for view in self.views))
