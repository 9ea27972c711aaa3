"""Heads by quarter of an entropy range: of the ceiling, or of the model's own largest.

The quarters of the largest head entropy observed in a model are those of 2410.09637
(overload: a disproportionate share of heads in the top one; collapse: entropies near 0).
"""

from __future__ import annotations

import math

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.statistics import interval
from normlens.kernels.attention_reduce import Stat
from normlens.kernels.attention_totals import Totals

QUARTERS = ("0-25 %", "25-50 %", "50-75 %", "75-100 %")


def quarter(share: float) -> str:
    """The quarter of [0, 1] that holds ``share``, lower ends included; empty without data."""
    return "" if math.isnan(share) else QUARTERS[min(max(int(4 * share), 0), 3)]


def largest_of(entropy: Float[Tensor, "*batch layer head"]) -> Float[Tensor, "*batch"]:
    """The largest entropy over heads with data, NaN without any."""
    largest = torch.nan_to_num(entropy, nan=-math.inf).amax((-1, -2))
    return largest.where(largest > 0, math.nan)


def quarter_shares(
    share: Float[Tensor, "*batch layer head"],
) -> Float[Tensor, "*batch 4"]:
    """Share of heads in each quarter, among those with data; NaN without any."""
    known = ~share.isnan()
    place = (4 * torch.nan_to_num(share)).long().clamp(0, 3)
    counts = torch.stack([((place == k) & known).sum((-1, -2)) for k in range(4)], -1)
    return counts / known.sum((-1, -2))[..., None]


def normalised_shares(totals: Totals) -> tuple[Float[Tensor, " 4"], Float[Tensor, "replicate 4"]]:
    """Quarters of ``H / ln n``, and those of every replicate."""
    return (
        quarter_shares(totals.mean(Stat.NORMALISED)),
        quarter_shares(totals.replicate_mean(Stat.NORMALISED)),
    )


def reproduction_shares(totals: Totals) -> tuple[Float[Tensor, " 4"], Float[Tensor, "replicate 4"]]:
    """Quarters of the model's largest head entropy, and those of every replicate."""
    entropy = totals.mean(Stat.ENTROPY_ALL, per=Stat.N_ALL)
    replicates = totals.replicate_mean(Stat.ENTROPY_ALL, per=Stat.N_ALL)
    return (
        quarter_shares(entropy / largest_of(entropy)),
        quarter_shares(replicates / largest_of(replicates)[:, None, None]),
    )


def bins_table(totals: Totals) -> pd.DataFrame:
    """Share of heads by quarter, in both modes."""
    rows = []
    known = int(totals.known().sum())
    for mode, (shares, replicates) in (
        ("normalised", normalised_shares(totals)),
        ("reproduction", reproduction_shares(totals)),
    ):
        for k, name in enumerate(QUARTERS):
            low, high = interval(replicates[:, k])
            rows.append(
                {
                    "mode": mode,
                    "quarter": name,
                    "n": known,
                    "share": float(shares[k]),
                    "share_low": low,
                    "share_high": high,
                }
            )
    return pd.DataFrame(rows)
