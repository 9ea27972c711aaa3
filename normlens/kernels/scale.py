"""Kernel of ``scale``: by what every norm divides its tokens.

1. Per site and token, the scale from the moments of the norm's input, or where it is no
   function of them (L1, CRMS) as measured in the pass (:mod:`token_scale`).
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

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.capture.statistics import BIN_COUNT, log_histogram
from normlens.errors import NotApplicable
from normlens.kernels.scale_summary import GROUPS, known_sites, summarise
from normlens.kernels.token_scale import token_scale
from normlens.kernels.token_sums import add_token_sums, declare_token_sums, spread
from normlens.models.lens import Lens, NormSite
from normlens.text.sequences import Batch


def _init(context: Context) -> State:
    lens, replicates = context.lens, context.replicates
    sites = len(known_sites(lens))
    if sites == 0:
        raise NotApplicable(why_no_scale(lens))
    state = State()
    for group in GROUPS:
        declare_token_sums(
            state, group, (sites,), measures=3, bootstrapped=2, replicates=replicates
        )
        state.declare(f"minimum.{group}", torch.full((sites,), math.inf).double(), Reduction.MIN)
        state.declare(f"maximum.{group}", torch.full((sites,), -math.inf).double(), Reduction.MAX)
        state.declare(f"histogram.{group}", torch.zeros(sites, BIN_COUNT, dtype=torch.int64))
    if context.parameters.per_token:
        state.declare("tokens", torch.zeros(0, 5, dtype=torch.float64), Reduction.ROWS)
    return state


def why_no_scale(lens: Lens) -> str:
    """Why no norm of a model has a scale, in words."""
    name = lens.identity.name
    if not lens.sites:
        return f"{name} has no norm"
    kinds = sorted({site.spec.kind.value for site in lens.sites})
    return f"{name} has no norm that divides tokens by a known scale: its norms are {kinds[0]}" + (
        "".join(f", {kind}" for kind in kinds[1:])
    )


def _update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    sites = known_sites(context.lens)
    # One transfer to the CPU per site: everything after it is a few numbers per token.
    seen = [_by_vector(site, observed) for site in sites]
    for vectors in sorted({one.shape[-1] for one in seen}):
        index = [i for i, one in enumerate(seen) if one.shape[-1] == vectors]
        some = torch.tensor(index)
        scale, mean, variance = torch.stack([seen[i] for i in index], 1)
        _add_sites(state, batch, some, scale, _along_ones(mean, variance))
        if context.parameters.per_token:
            state.add("tokens", _token_rows(batch, some, scale))


def _by_vector(site: NormSite, observed: Observed) -> Float[Tensor, "3 batch pos vector"]:
    """Scale, mean and variance of the vectors that a norm sees per token: its heads, or one."""
    moments = observed.norm_moments[site.label].cpu().double()
    measured = observed.norm_scales.get(site.label)
    if measured is not None:
        measured = measured.cpu().double()
    scale = token_scale(site.spec, moments[0], moments[1], measured)
    return torch.cat([scale[None], moments]).reshape(3, *moments.shape[1:3], -1)


def _along_ones(mean: Tensor, variance: Tensor) -> Tensor:
    """``mean**2 / mean(x**2)``: the share of a vector along ones."""
    along = mean.square()
    return along / (along + variance).clamp_min(torch.finfo(torch.float64).tiny)


def _add_sites(
    state: State,
    batch: Batch,
    some: Int[Tensor, " site"],
    scale: Float[Tensor, "site batch pos vector"],
    share: Float[Tensor, "site batch pos vector"],
) -> None:
    values = torch.stack([scale, scale.square(), share]).flatten(3)  # [measure site batch vector]
    flat = values[0]
    for group, tokens in zip(GROUPS, (batch.first, batch.rest), strict=True):
        members = tokens.cpu()[..., None].expand(scale.shape[1:]).flatten(1)
        counted = add_token_sums(state, group, members, values, slice(2), batch.weights, some)
        smallest = torch.where(counted, flat, math.inf).amin((-1, -2))
        largest = torch.where(counted, flat, -math.inf).amax((-1, -2))
        histograms = torch.stack([log_histogram(s[c]) for s, c in zip(flat, counted, strict=True)])
        sites = len(state.tensors[f"n.{group}"])
        state.add(f"minimum.{group}", spread(smallest, some, sites, math.inf))
        state.add(f"maximum.{group}", spread(largest, some, sites, -math.inf))
        state.add(f"histogram.{group}", spread(histograms.T, some, sites).T)


def _token_rows(
    batch: Batch, some: Int[Tensor, " site"], scale: Float[Tensor, "site batch pos vector"]
) -> Float[Tensor, "row 5"]:
    """Rows ``sequence, position, site, vector, scale`` of all real tokens."""
    row, position = batch.mask.cpu().nonzero(as_tuple=True)
    values = scale[:, row, position].permute(1, 0, 2)  # [token site vector]
    columns = (
        batch.index[row][:, None, None],
        position[:, None, None],
        some[:, None],
        torch.arange(values.shape[-1]),
    )
    every = [column.double().expand_as(values) for column in columns]
    return torch.stack([*every, values], -1).flatten(0, 2)


def _finish(state: State, context: Context) -> Finding:
    return summarise(state, context)


KERNEL = Streaming(init=_init, update=_update, finish=_finish)
"""What the runner looks up."""
