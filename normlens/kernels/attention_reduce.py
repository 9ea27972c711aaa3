"""From the attention of some heads to a few sums per sequence and head.

With logits z, probabilities p, n visible keys and z* = max z of one query:

    H   = -ln max p - sum_j p_j (z_j - z*)       = -sum_j p_j ln p_j
    Hb  = -a ln a - (1 - a) ln(1 - a)            a: probability of the sequence's first token

The first form of H, which holds for softmax, needs no logarithm per pair, and every term of
its sum is at most H: no cancellation, exact zeros count 0, and NaN stays NaN. Weights of another
rule take the second form.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.capture.attention import AttentionChunk
from normlens.capture.points import Point
from normlens.capture.protocol import Context
from normlens.models.families import family_of
from normlens.text.sequences import Batch


class Stat(IntEnum):
    """Sums over the queries of a group; ``*_ALL`` over every query of the sequence."""

    N = 0
    NORMALISED = 1
    ENTROPY = 2
    FIRST_MASS = 3
    SINK = 4
    CEILING = 5
    NAN = 6
    N_ALL = 7
    ENTROPY_ALL = 8
    CEILING_ALL = 9
    PAIRS = 10
    LOGIT = 11
    LOGIT_SQUARE = 12
    QUERY_NORM = 13
    KEY_NORM = 14
    COSINE = 15


class Extreme(IntEnum):
    """Largest values over the queries of a group."""

    LOGIT = 0
    EXCESS = 1
    """How far an entropy lies outside [0, ln n], nats."""
    RESIDUAL = 2
    """How far the recomputed attention is from the model's."""


class Sink(IntEnum):
    """Per sequence and head."""

    COUNTED = 0
    ABOVE = 1
    MASS = 2


def groups_of(context: Context) -> tuple[str, ...]:
    """Token groups: the first query of a causal model sees itself alone and has no entropy."""
    return ("rest",) if family_of(context.lens.model).causal else ("rest", "first")


def reduce_chunk(
    point: Point, chunk: AttentionChunk, batch: Batch, context: Context
) -> Mapping[str, Tensor]:
    """Sums, extremes and sinks of one chunk, float64.

    Returns:
        ``sums [row head group stat]``, ``extremes [row head group 3]`` and
        ``sinks [row head 3]``.
    """
    per_query = PerQuery(chunk, batch)
    in_group = {"rest": batch.rest[chunk.rows], "first": batch.first[chunk.rows]}
    groups = [in_group[name][:, None] for name in groups_of(context)]
    return {
        "sums": torch.stack([per_query.sums(group) for group in groups], 2),
        "extremes": torch.stack([per_query.extremes(group) for group in groups], 2),
        "sinks": per_query.sinks(
            context.parameters.sink_positions,
            context.parameters.sink_threshold,
            causal=family_of(context.lens.model).causal,
        ),
    }


class PerQuery:
    """What every query of a chunk comes to, ``[row head query]`` or ``[row 1 query]``."""

    def __init__(self, chunk: AttentionChunk, batch: Batch) -> None:
        logits, probabilities = chunk.logits, chunk.probabilities
        shown = chunk.visible.to(logits.dtype)
        self.real = batch.mask[chunk.rows][:, None]
        self.keys = chunk.keys.double()
        self.ceiling = self.keys.log()
        self.top = logits.amax(-1)
        # The lowest number instead of -inf: times a hidden key's 0 it is 0 and not NaN.
        below = logits.clamp_min(torch.finfo(logits.dtype).min / 4)
        below.sub_(self.top[..., None]).mul_(shown)
        self.below = below.sum(-1).double()
        self.below_square = torch.linalg.vector_norm(below, dim=-1).double().square()
        # In place, since a buffer of this size costs as much as what is done with it.
        inner = below.mul_(probabilities).sum(-1)
        if chunk.softmax:
            self.entropy = (-probabilities.amax(-1).log() - inner).double()
        else:
            self.entropy = torch.special.entr(probabilities).sum(-1).double()
        first = batch.first[chunk.rows].long().argmax(-1)
        index = first[:, None, None, None].expand(*self.top.shape, 1)
        self.first_mass = probabilities.gather(-1, index)[..., 0].double()
        self.lost = self.entropy.isnan()
        self.residual = chunk.residual.double()
        self.query_norm, self.key_norm, self.cosine = _vectors(chunk, shown)

    def sums(self, group: Bool[Tensor, "row 1 query"]) -> Float[Tensor, "row head stat"]:
        """Every :class:`Stat` over the queries of a group with two visible keys or more."""
        counted = group & (self.keys >= 2) & ~self.lost
        every = self.real & ~self.lost
        top, keys = self.top.double(), self.keys
        sink = torch.special.entr(self.first_mass) + torch.special.entr(1 - self.first_mass)
        one = torch.ones_like(self.ceiling)
        of_group = {
            Stat.N: one,
            Stat.NORMALISED: self.entropy / self.ceiling,
            Stat.ENTROPY: self.entropy,
            Stat.FIRST_MASS: self.first_mass,
            Stat.SINK: sink,
            Stat.CEILING: self.ceiling,
            Stat.PAIRS: keys,
            Stat.LOGIT: self.below + keys * top,
            Stat.LOGIT_SQUARE: self.below_square + (2 * self.below + keys * top) * top,
            Stat.QUERY_NORM: self.query_norm,
            Stat.KEY_NORM: self.key_norm,
            Stat.COSINE: self.cosine,
        }
        of_all = {
            Stat.N_ALL: one,
            Stat.ENTROPY_ALL: self.entropy,
            Stat.CEILING_ALL: self.ceiling,
        }
        found = {**_totals(of_group, counted), **_totals(of_all, every)}
        found[Stat.NAN] = (self.lost & group).sum(-1).double()
        return torch.stack([found[stat] for stat in Stat], -1)

    def extremes(self, group: Bool[Tensor, "row 1 query"]) -> Float[Tensor, "row head extreme"]:
        """Every :class:`Extreme`; ``-inf`` where the group has no query."""
        counted = group & (self.keys >= 2) & ~self.lost
        outside = torch.maximum(-self.entropy, self.entropy - self.ceiling)
        off = torch.where(self.residual.isnan(), -torch.inf, self.residual)
        return torch.stack(
            [_largest(self.top.double(), counted), _largest(outside, counted), off], -1
        )

    def sinks(
        self, positions: int, threshold: float, *, causal: bool
    ) -> Float[Tensor, "row head sink"]:
        """Mean attention on the first token over the first ``positions`` queries.

        ``alpha_1 = sum_{i=1..T} A_i1 / T`` (2410.10781, eq. 5 with k = 1). Not of encoders,
        whose queries spread over what comes after the first T tokens as well.
        """
        window = slice(0, positions)
        long_enough = self.real[..., window].sum(-1) == positions
        mass = self.first_mass[..., window].sum(-1) / positions
        counted = long_enough & ~mass.isnan() & causal
        return torch.stack(
            [counted.double(), (counted & (mass > threshold)).double(), mass.where(counted, 0.0)],
            -1,
        )


def _vectors(
    chunk: AttentionChunk, shown: Float[Tensor, "row 1 query key"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Norms of queries and of the keys at the same tokens, and per query its sum of cosines.

    ``sum_j cos(q, k_j) = q/|q| . sum_j k_j/|k_j|`` over visible keys; NaN without vectors.
    """
    if chunk.query is None or chunk.key is None:
        nothing = torch.full_like(chunk.logits[..., 0], torch.nan, dtype=torch.float64)
        return nothing, nothing, nothing
    query, key = chunk.query, chunk.key
    query_norm = torch.linalg.vector_norm(query, dim=-1)
    key_norm = torch.linalg.vector_norm(key, dim=-1)
    tiny = torch.finfo(query.dtype).tiny
    unit = key / key_norm.clamp_min(tiny)[..., None]
    if chunk.causal:
        around = unit.cumsum(-2)
    else:
        # Heads beside each other, so that the mask they share is not repeated.
        beside = unit.transpose(1, 2)
        around = (shown[:, 0] @ beside.flatten(2)).unflatten(2, beside.shape[2:]).transpose(1, 2)
    cosine = (query * around).sum(-1) / query_norm.clamp_min(tiny)
    return query_norm.double(), key_norm.double(), cosine.double()


def _totals(
    values: Mapping[Stat, Tensor], counted: Bool[Tensor, "row head query"]
) -> dict[Stat, Float[Tensor, "row head"]]:
    """Sums over the counted queries; one pass over all of them, as each is short."""
    alike = torch.stack([value.expand(counted.shape) for value in values.values()])
    return dict(zip(values, torch.where(counted, alike, 0.0).sum(-1), strict=True))


def _largest(value: Tensor, counted: Tensor) -> Tensor:
    return torch.where(counted, value, -torch.inf).amax(-1)
