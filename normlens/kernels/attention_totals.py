"""The statistics of ``attention-entropy`` by name."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.capture.protocol import Context
from normlens.capture.state import State
from normlens.kernels.attention_reduce import Sink, Stat, groups_of

REPLICATED = (
    Stat.N,
    Stat.NORMALISED,
    Stat.ENTROPY,
    Stat.FIRST_MASS,
    Stat.SINK,
    Stat.N_ALL,
    Stat.ENTROPY_ALL,
)
"""What is bootstrapped."""


@dataclass(frozen=True)
class Totals:
    """What a pass left.

    Attributes:
        sums: ``[layer head group stat]``; sinks: ``[layer head sink]``.
        extremes: ``[layer head group extreme]``.
        replicates: ``[replicate what layer head group]``, ordered as :data:`REPLICATED`.
        replicate_sinks: ``[replicate sink layer head]``.
        groups: names along the group axis; the first is ``rest``.
    """

    sums: Float[Tensor, "layer head group stat"]
    sinks: Float[Tensor, "layer head sink"]
    extremes: Float[Tensor, "layer head group extreme"]
    replicates: Float[Tensor, "replicate what layer head group"]
    replicate_sinks: Float[Tensor, "replicate sink layer head"]
    groups: tuple[str, ...]

    @staticmethod
    def of_state(state: State, context: Context) -> Totals:
        """Read the kernel's State."""
        tensors = state.tensors
        return Totals(
            sums=tensors["sums"],
            sinks=tensors["sinks"],
            extremes=tensors["extremes"],
            replicates=tensors["replicates"],
            replicate_sinks=tensors["replicate_sinks"],
            groups=groups_of(context),
        )

    def of(self, stat: Stat, group: int = 0) -> Float[Tensor, "layer head"]:
        """One sum."""
        return self.sums[:, :, group, stat]

    def mean(self, stat: Stat, group: int = 0, per: Stat = Stat.N) -> Float[Tensor, "layer head"]:
        """A sum per query, or per what is named; NaN where the group has no query."""
        mean = self.of(stat, group) / self.of(per, group)
        return mean.where(self.known(group), math.nan)

    def known(self, group: int = 0) -> Bool[Tensor, "layer head"]:
        """Heads with a query in the group."""
        return self.of(Stat.N, group) > 0

    def replicate(self, stat: Stat, group: int = 0) -> Float[Tensor, "replicate layer head"]:
        """The sum of every bootstrap replicate."""
        return self.replicates[:, REPLICATED.index(stat), ..., group]

    def replicate_mean(
        self, stat: Stat, group: int = 0, per: Stat = Stat.N
    ) -> Float[Tensor, "replicate layer head"]:
        """The mean of every bootstrap replicate; NaN where it drew no query."""
        return self.replicate(stat, group) / self.replicate(per, group)

    @property
    def sink_count(self) -> int:
        """Sequences times heads behind the sink rate."""
        return int(self.sinks[..., Sink.COUNTED].sum())


def total_tokens(totals: Totals) -> int:
    """Queries behind the numbers of a head, the largest over heads."""
    return int(torch.nan_to_num(totals.of(Stat.N)).max())
