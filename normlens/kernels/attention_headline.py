"""The headline numbers of ``attention-entropy`` and their bootstrap replicates."""

from __future__ import annotations

import math

from torch import Tensor

from normlens.capture.statistics import interval
from normlens.kernels.attention_quarters import normalised_shares
from normlens.kernels.attention_reduce import Sink, Stat
from normlens.kernels.attention_totals import Totals, total_tokens
from normlens.results import Headline


def headline(totals: Totals) -> tuple[tuple[Headline, ...], dict[str, Tensor]]:
    """Numbers a reader takes away; replicates by the number's name."""
    tokens, heads = total_tokens(totals), int(totals.known().sum())
    shares, replicate_shares = normalised_shares(totals)
    sinks, replicate_sinks = totals.sinks, totals.replicate_sinks
    rate = sinks[..., Sink.ABOVE].sum() / sinks[..., Sink.COUNTED].sum()
    replicate_rate = replicate_sinks[:, Sink.ABOVE].sum((-1, -2)) / (
        replicate_sinks[:, Sink.COUNTED].sum((-1, -2))
    )
    found = (
        _number(
            "normalised_entropy", "1", "mean over heads of the mean of H / ln n", tokens,
            *_over_heads(totals, Stat.NORMALISED),
        ),
        _number(
            "overloaded", "1", "share of heads whose normalised entropy is 75 % or more", heads,
            shares[3], replicate_shares[:, 3],
        ),
        _number(
            "collapsed", "1", "share of heads whose normalised entropy is below 25 %", heads,
            shares[0], replicate_shares[:, 0],
        ),
        _number(
            "entropy", "nats", "mean over heads of the mean entropy", tokens,
            *_over_heads(totals, Stat.ENTROPY),
        ),
        _number(
            "first_mass", "1", "mean attention on the first token of the sequence", tokens,
            *_over_heads(totals, Stat.FIRST_MASS),
        ),
        _number(
            "entropy_beyond_first", "nats",
            "mean entropy of the attention that is not on the first token, weighted by its mass",
            tokens, *_beyond_first(totals),
        ),
        _number(
            "sink_rate", "1",
            "share of heads and sequences with a sink on the first token; n = their number",
            totals.sink_count, rate, replicate_rate,
        ),
    )  # fmt: skip
    return tuple(number for number, _ in found), {number.name: r for number, r in found}


def _over_heads(totals: Totals, stat: Stat) -> tuple[Tensor, Tensor]:
    mean, replicates = totals.mean(stat), totals.replicate_mean(stat)
    return mean.nanmean(), replicates.flatten(1).nanmean(1)


def _beyond_first(totals: Totals) -> tuple[Tensor, Tensor]:
    """``sum (H - Hb(a_0)) / sum (1 - a_0)`` over all heads and queries."""
    rest = totals.of(Stat.ENTROPY) - totals.of(Stat.SINK)
    mass = totals.of(Stat.N) - totals.of(Stat.FIRST_MASS)
    replicate_rest = totals.replicate(Stat.ENTROPY) - totals.replicate(Stat.SINK)
    replicate_mass = totals.replicate(Stat.N) - totals.replicate(Stat.FIRST_MASS)
    return rest.sum() / mass.sum(), replicate_rest.sum((-1, -2)) / replicate_mass.sum((-1, -2))


def _number(
    name: str, unit: str, doc: str, n: int, value: Tensor, replicates: Tensor
) -> tuple[Headline, Tensor]:
    low, high = interval(replicates)
    if math.isnan(value):
        n = 0
    return Headline(name, float(value), unit, doc, n, low, high), replicates
