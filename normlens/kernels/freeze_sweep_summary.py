"""From the statistics of ``freeze-sweep`` to its table, headline numbers and checks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.protocol import Finding
from normlens.capture.state import State
from normlens.capture.statistics import interval
from normlens.kernels.site_columns import site_columns
from normlens.models.lens import Lens, NormSite
from normlens.results import Check, Headline
from normlens.tolerances import for_dtype

MODES = ("single", "cumulative")


def summarise(
    state: State, sites: Sequence[NormSite], frozen: Float[Tensor, "2 site"], lens: Lens
) -> Finding:
    """Table, headline numbers, check and warnings of ``freeze-sweep``.

    Args:
        state: of the sweep; its variants are all single ones, then all cumulative ones.
        sites: in removal order.
        frozen: mean scale of first tokens and of all others.
        lens: the model.
    """
    rows = [
        _row(state, mode * len(sites) + step, site, frozen[:, step])
        | {"mode": MODES[mode], "step": step + 1}
        for mode in range(len(MODES))
        for step, site in enumerate(sites)
    ]
    table = pd.DataFrame(rows)
    all_frozen = _delta_replicates(state, 2 * len(sites) - 1)
    return Finding(
        tables={"sweep": table},
        headline=_headline(table),
        checks=(_check(state, lens),),
        warnings=_warnings(table, state, lens),
        replicates={"delta_all_frozen": all_frozen},
    )


def _row(state: State, variant: int, site: NormSite, frozen: Tensor) -> dict[str, object]:
    n = int(state.tensors["n"][variant])
    loss, delta, kl = (state.tensors["sums"][variant] / n).tolist()
    low, high = interval(_delta_replicates(state, variant))
    overflow = int(state.tensors["overflow"][variant])
    first, rest = frozen.tolist()
    return {
        **site_columns(site),
        "n": n,
        "loss": loss,
        "delta_loss": delta,
        "delta_low": low,
        "delta_high": high,
        "kl": kl,
        "frozen_scale": rest if n else math.nan,
        "frozen_scale_first": first if n else math.nan,
        "status": "overflow" if overflow else "ok" if n else "no_data",
    }


def _delta_replicates(state: State, variant: int) -> Tensor:
    n, delta = state.tensors["replicates"][variant]
    return delta / n


def _headline(table: pd.DataFrame) -> tuple[Headline, ...]:
    everything = table.iloc[-1]
    singles = table[table["mode"] == MODES[0]]
    largest = singles.sort_values("delta_loss", ascending=False, kind="stable").iloc[0]
    return (
        _change("delta_all_frozen", "change of the loss with every scale frozen", everything),
        Headline(
            "kl_all_frozen",
            float(everything["kl"]),
            "nats/token",
            "KL(intact || frozen) with every scale frozen",
            int(everything["n"]),
        ),
        _change(
            "delta_largest_single",
            f"largest change of the loss with one scale frozen, here {largest['site']}",
            largest,
        ),
    )


def _change(name: str, doc: str, row: pd.Series) -> Headline:
    value, low, high = (float(row[key]) for key in ("delta_loss", "delta_low", "delta_high"))
    return Headline(name, value, "nats/token", doc, int(row["n"]), low, high)


def _check(state: State, lens: Lens) -> Check:
    value = float(state.tensors["identity"])
    tolerance = for_dtype("live_freeze", lens.placement.dtype)
    doc = "relative change of the logits when every scale is frozen to its own live value"
    return Check("live_freeze_keeps_logits", value, tolerance, value <= tolerance, doc)


def _warnings(table: pd.DataFrame, state: State, lens: Lens) -> tuple[str, ...]:
    worst = int(torch.argmax(state.tensors["overflow"]))
    lost = int(state.tensors["overflow"][worst])
    if lost == 0:
        return ()
    row = table.iloc[worst]
    return (
        f"up to {lost} predictions have a NaN or infinite logit in {lens.placement.dtype} "
        f"({row['mode']} freeze at {row['site']}) and are left out of their row; open the model in "
        "float32",
    )
