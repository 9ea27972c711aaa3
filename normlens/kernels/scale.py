"""Kernel of ``scale``: by what every norm divides its tokens.

1. Per site and token, the scale from the moments of the norm's input (:mod:`token_scale`).
   A norm that sees each head by itself has one scale per head and token; each counts.
2. Per site and token group, float64 sums of the scale, its square and the share along ones
   ``mean**2 / (mean**2 + variance)``; extremes; a log histogram for the quantiles.
3. Per sequence the count, sum and sum of squares, weighted by the document's bootstrap
   weights: the spread ``sd / mean`` of every replicate follows from these three.

``sd`` is the population standard deviation over tokens. It comes from
``mean(s**2) - mean(s)**2`` in float64, so a spread below about 1e-8 is rounding. Tokens
whose scale is not finite (the input overflowed the model's dtype) are counted apart, left
out of every number, and turn the row's status into ``overflow``.

Sources: LayerNorm 1607.06450 eq. 3-4; RMSNorm 1910.07467 eq. 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.capture.statistics import BIN_COUNT, log_histogram
from normlens.errors import NotApplicable
from normlens.kernels.scale_summary import GROUPS, known_sites, summarise
from normlens.kernels.token_scale import token_scale
from normlens.models.lens import NormSite
from normlens.text.sequences import Batch


def _init(context: Context) -> State:
    sites = len(known_sites(context.lens))
    if sites == 0:
        what = "norm whose scale is known" if context.lens.sites else "norm"
        raise NotApplicable(f"{context.lens.identity.name} has no {what}")
    state = State()
    for group in GROUPS:
        state.declare(f"n.{group}", torch.zeros(sites, dtype=torch.int64))
        state.declare(f"overflow.{group}", torch.zeros(sites, dtype=torch.int64))
        state.declare(f"sums.{group}", torch.zeros(3, sites, dtype=torch.float64))
        state.declare(f"minimum.{group}", torch.full((sites,), math.inf).double(), Reduction.MIN)
        state.declare(f"maximum.{group}", torch.full((sites,), -math.inf).double(), Reduction.MAX)
        state.declare(f"histogram.{group}", torch.zeros(sites, BIN_COUNT, dtype=torch.int64))
        replicates = torch.zeros(context.replicates, 3, sites, dtype=torch.float64)
        state.declare(f"replicates.{group}", replicates)
    if context.parameters.per_token:
        state.declare("tokens", torch.zeros(0, 5, dtype=torch.float64), Reduction.ROWS)
    return state


def _update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    sites = known_sites(context.lens)
    # One transfer to the CPU per site: everything after it is a few numbers per token.
    moments = [_by_vector(observed.norm_moments[site.label]) for site in sites]
    for vectors in sorted({m.shape[-1] for m in moments}):
        chosen = [i for i, m in enumerate(moments) if m.shape[-1] == vectors]
        some = _Sites([sites[i] for i in chosen], torch.tensor(chosen), len(sites))
        mean, variance = torch.stack([moments[i] for i in chosen]).unbind(1)
        _add_sites(state, batch, some, mean, variance, per_token=context.parameters.per_token)


@dataclass(frozen=True)
class _Sites:
    """Sites with equally many vectors per token, and their places among all known ones."""

    sites: list[NormSite]
    index: Int[Tensor, " site"]
    total: int

    def placed(self, values: Tensor, neutral: float = 0) -> Tensor:
        """``values [site ...]`` with the neutral value for every other site."""
        full = torch.full((self.total, *values.shape[1:]), neutral, dtype=values.dtype)
        full[self.index] = values
        return full


def _by_vector(moments: Float[Tensor, "2 batch pos *head"]) -> Float[Tensor, "2 batch pos vector"]:
    """One last axis for the vectors that a norm sees per token: its heads, or one."""
    return moments.cpu().double().reshape(*moments.shape[:3], -1)


def _add_sites(
    state: State,
    batch: Batch,
    some: _Sites,
    mean: Float[Tensor, "site batch pos vector"],
    variance: Float[Tensor, "site batch pos vector"],
    *,
    per_token: bool,
) -> None:
    scale = torch.stack(
        [token_scale(s.spec, m, v) for s, m, v in zip(some.sites, mean, variance, strict=True)]
    )
    along_ones = mean.square()
    share = along_ones / (along_ones + variance).clamp_min(torch.finfo(torch.float64).tiny)
    for group, tokens in zip(GROUPS, (batch.first, batch.rest), strict=True):
        members = tokens.cpu()[..., None].expand(scale.shape[1:]).flatten(1)
        _add_group(state, group, some, members, scale.flatten(2), share.flatten(2), batch.weights)
    if per_token:
        state.add("tokens", _token_rows(batch, some, scale))


def _add_group(
    state: State,
    group: str,
    some: _Sites,
    members: Bool[Tensor, "batch vector"],
    scale: Float[Tensor, "site batch vector"],
    share: Float[Tensor, "site batch vector"],
    weights: Float[Tensor, "replicate batch"],
) -> None:
    counted = members & scale.isfinite()
    kept = torch.where(counted, scale, 0.0)
    per_sequence = torch.stack(
        [counted.sum(-1).double(), kept.sum(-1), kept.square().sum(-1)], 1
    )  # [site 3 batch]
    count, total, square = per_sequence.sum(-1).unbind(1)
    along_ones = torch.where(counted, share, 0.0).sum((-1, -2))
    sums = torch.stack([total, square, along_ones], 1)
    smallest = torch.where(counted, scale, math.inf).amin((-1, -2))
    largest = torch.where(counted, scale, -math.inf).amax((-1, -2))
    histograms = torch.stack([log_histogram(s[c]) for s, c in zip(scale, counted, strict=True)])
    replicates = (per_sequence @ weights.T).permute(2, 1, 0)  # [replicate 3 site]
    state.add(f"n.{group}", some.placed(count))
    state.add(f"overflow.{group}", some.placed(members.sum() - count))
    state.add(f"sums.{group}", some.placed(sums).T)
    state.add(f"minimum.{group}", some.placed(smallest, math.inf))
    state.add(f"maximum.{group}", some.placed(largest, -math.inf))
    state.add(f"histogram.{group}", some.placed(histograms))
    state.add(f"replicates.{group}", some.placed(replicates.permute(2, 0, 1)).permute(1, 2, 0))


def _token_rows(
    batch: Batch, some: _Sites, scale: Float[Tensor, "site batch pos vector"]
) -> Float[Tensor, "row 5"]:
    """Rows ``sequence, position, site, vector, scale`` of all real tokens."""
    row, position = batch.mask.cpu().nonzero(as_tuple=True)
    values = scale[:, row, position].permute(1, 0, 2)  # [token site vector]
    columns = (
        batch.index[row][:, None, None],
        position[:, None, None],
        some.index[:, None],
        torch.arange(values.shape[-1]),
    )
    every = [column.double().expand_as(values) for column in columns]
    return torch.stack([*every, values], -1).flatten(0, 2)


def _finish(state: State, context: Context) -> Finding:
    return summarise(state, context)


KERNEL = Streaming(init=_init, update=_update, finish=_finish)
"""What the runner looks up."""
