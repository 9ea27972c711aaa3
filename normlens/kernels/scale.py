"""Kernel of ``scale``: by what every norm divides its tokens.

1. Per site and token, the scale from the moments of the norm's input (:mod:`token_scale`).
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

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.capture.statistics import BIN_COUNT, log_histogram
from normlens.errors import NotApplicable
from normlens.kernels.scale_summary import GROUPS, known_sites, summarise
from normlens.kernels.token_scale import token_scale
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
        state.declare("tokens", torch.zeros(0, 4, dtype=torch.float64), Reduction.ROWS)
    return state


def _update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    sites = known_sites(context.lens)
    # One transfer to the CPU: everything after it is a few numbers per token.
    moments = torch.stack([observed.norm_moments[site.label] for site in sites]).cpu().double()
    mean, variance = moments.unbind(1)
    scale = torch.stack(
        [token_scale(site.spec, m, v) for site, m, v in zip(sites, mean, variance, strict=True)]
    )
    along_ones = mean.square()
    share = along_ones / (along_ones + variance).clamp_min(torch.finfo(torch.float64).tiny)
    for group, members in zip(GROUPS, (batch.first, batch.rest), strict=True):
        _add_group(state, group, members.cpu(), scale, share, batch.weights)
    if context.parameters.per_token:
        state.add("tokens", _token_rows(batch, scale))


def _add_group(
    state: State,
    group: str,
    members: Bool[Tensor, "batch pos"],
    scale: Float[Tensor, "site batch pos"],
    share: Float[Tensor, "site batch pos"],
    weights: Float[Tensor, "replicate batch"],
) -> None:
    counted = members & scale.isfinite()
    kept = torch.where(counted, scale, 0.0)
    per_sequence = torch.stack(
        [counted.sum(-1).double(), kept.sum(-1), kept.square().sum(-1)]
    )  # [3 site batch]
    count, total, square = per_sequence.sum(-1)
    state.add(f"n.{group}", count)
    state.add(f"overflow.{group}", members.sum() - count)
    along_ones = torch.where(counted, share, 0.0).sum((-1, -2))
    state.add(f"sums.{group}", torch.stack([total, square, along_ones]))
    state.add(f"minimum.{group}", torch.where(counted, scale, math.inf).amin((-1, -2)))
    state.add(f"maximum.{group}", torch.where(counted, scale, -math.inf).amax((-1, -2)))
    histograms = [log_histogram(s[c]) for s, c in zip(scale, counted, strict=True)]
    state.add(f"histogram.{group}", torch.stack(histograms))
    replicates = weights @ per_sequence.flatten(0, 1).T
    state.add(f"replicates.{group}", replicates.unflatten(1, (3, -1)))


def _token_rows(batch: Batch, scale: Float[Tensor, "site batch pos"]) -> Float[Tensor, "row 4"]:
    """Rows ``sequence, position, site, scale`` of all real tokens, in this order."""
    row, position = batch.mask.cpu().nonzero(as_tuple=True)
    values = scale[:, row, position].T  # [token site]
    site = torch.arange(scale.shape[0]).expand_as(values)
    columns = [batch.index[row][:, None].expand_as(values), position[:, None].expand_as(values)]
    return torch.stack([*(c.double() for c in columns), site.double(), values], -1).flatten(0, 1)


def _finish(state: State, context: Context) -> Finding:
    return summarise(state, context)


KERNEL = Streaming(init=_init, update=_update, finish=_finish)
"""What the runner looks up."""
