"""Headline numbers of ``curves``: medians over sites, tokens after the first."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd
import torch
from torch import Tensor

from normlens.capture.statistics import interval
from normlens.kernels.curve_shape import TAIL
from normlens.results import Headline


def headline(
    tables: Mapping[str, pd.DataFrame], spreads: Tensor
) -> tuple[tuple[Headline, ...], dict[str, Tensor]]:
    """Headline numbers, and the replicates of the one that has an interval.

    Args:
        tables: of the analysis.
        spreads: replicates of the slopes' spread, ``[replicate known site]``.
    """
    fits, tails = _rest(tables["fits"]), _rest(tables["tails"])
    tails = tails[tails["range"] == TAIL]
    numbers = [
        _median("curve_r2", fits, "R² that no function of one element can exceed"),
        *(_median(f"{name}_r2", fits, f"R² of {what}") for name, what in _FITS.items()),
        *(
            _median(f"{name}_error", tails, f"RMS error of {what} in the largest 0.1 % of |x|")
            for name, what in _FITS.items()
        ),
        _median("bend", tails, "mean |xhat| over the straight line's in the largest 0.1 % of |x|"),
        _smallest_bend(tails),
        _eln_better(tails),
    ]
    spread, replicates = _slope_spread(tables["slopes"], spreads)
    return (*numbers, spread), replicates


_FITS = {
    "tanh": "s tanh(alpha x)",
    "eln": "s x / sqrt(beta + x²)",
    "line": "the straight line",
}


def _rest(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[(frame["group"] == "rest") & (frame["n"] > 0)]


def _median(column: str, frame: pd.DataFrame, what: str) -> Headline:
    doc = f"{what}, median over {len(frame)} norms, first tokens apart"
    name = column.replace("_error", "_tail_error").replace("bend", "tail_bend")
    if not len(frame):
        return Headline(name, math.nan, "1", doc, 0)
    return Headline(name, float(frame[column].median()), "1", doc, int(frame["n"].max()))


def _smallest_bend(tails: pd.DataFrame) -> Headline:
    name, doc = "tail_bend_smallest", "smallest of these bends"
    if not len(tails):
        return Headline(name, math.nan, "1", f"{doc}; there is none", 0)
    row = tails.iloc[int(tails["bend"].argmin())]
    return Headline(name, float(row["bend"]), "1", f"{doc}, at {row['site']}", int(row["n"]))


def _eln_better(tails: pd.DataFrame) -> Headline:
    name = "eln_better_in_tail"
    doc = "share of norms where ELN errs less than tanh in the largest 0.1 % of |x|"
    if not len(tails):
        return Headline(name, math.nan, "1", doc, 0)
    better = tails["eln_error"] < tails["tanh_error"]
    return Headline(name, float(better.mean()), "1", doc, int(tails["n"].max()))


def _slope_spread(slopes: pd.DataFrame, spreads: Tensor) -> tuple[Headline, dict[str, Tensor]]:
    name = "slope_spread"
    known = slopes[(slopes["group"] == "rest")].reset_index(drop=True)
    frame = known[known["n"] > 0]
    doc = f"sd / mean of the tokens' slopes, median over {len(frame)} norms, first tokens apart"
    if not len(frame):
        return Headline(name, math.nan, "1", doc, 0), {}
    finite = spreads[:, torch.isfinite(spreads).any(0)]
    replicates = finite.quantile(0.5, dim=1)
    low, high = interval(replicates)
    value = float(frame["spread"].median())
    return Headline(name, value, "1", doc, int(frame["n"].max()), low, high), {name: replicates}
