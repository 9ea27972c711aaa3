"""From the sums of ``attention-entropy`` to its tables and checks."""

from __future__ import annotations

import math

import pandas as pd

from normlens.capture.protocol import Context, Finding
from normlens.capture.state import State
from normlens.capture.statistics import interval
from normlens.kernels.attention_headline import headline
from normlens.kernels.attention_quarters import bins_table, largest_of, quarter
from normlens.kernels.attention_reduce import Extreme, Sink, Stat
from normlens.kernels.attention_totals import Totals
from normlens.models.families import family_of
from normlens.results import Check
from normlens.tolerances import for_dtype


def summarise(state: State, context: Context) -> Finding:
    """Tables, headline numbers, checks and warnings."""
    totals = Totals.of_state(state, context)
    numbers, replicates = headline(totals)
    return Finding(
        tables={
            "heads": _heads_table(totals),
            "bins": bins_table(totals),
            "sinks": _sinks_table(totals, int(state.tensors["short"]), context),
            "logits": _logits_table(totals),
            "vectors": _vectors_table(totals),
        },
        headline=numbers,
        checks=_checks(totals, context),
        warnings=_warnings(totals, context),
        replicates=replicates,
    )


def _heads_table(totals: Totals) -> pd.DataFrame:
    largest = float(largest_of(totals.mean(Stat.ENTROPY_ALL, per=Stat.N_ALL)))
    rows = []
    for group, name in enumerate(totals.groups):
        means = {stat: totals.mean(stat, group) for stat in Stat}
        whole = {
            stat: totals.mean(stat, group, Stat.N_ALL)
            for stat in (Stat.ENTROPY_ALL, Stat.CEILING_ALL)
        }
        replicates = totals.replicate_mean(Stat.NORMALISED, group)
        for layer, head in _heads(totals):
            here = (layer, head)
            low, high = interval(replicates[:, layer, head])
            normalised = float(means[Stat.NORMALISED][here])
            published = float(whole[Stat.ENTROPY_ALL][here])
            entropy, sink = float(means[Stat.ENTROPY][here]), float(means[Stat.SINK][here])
            rows.append(
                {
                    **_name(layer, head, name),
                    "n": int(totals.of(Stat.N, group)[here]),
                    "normalised": normalised,
                    "normalised_low": low,
                    "normalised_high": high,
                    "quarter": quarter(normalised),
                    "entropy": entropy,
                    "ceiling": float(means[Stat.CEILING][here]),
                    "entropy_all": published,
                    "ceiling_all": float(whole[Stat.CEILING_ALL][here]),
                    "reproduction_quarter": quarter(published / largest),
                    "first_mass": float(means[Stat.FIRST_MASS][here]),
                    "sink_entropy": sink,
                    "rest_entropy": entropy - sink,
                    "nan": int(totals.of(Stat.NAN, group)[here]),
                }
            )
    return pd.DataFrame(rows)


def _sinks_table(totals: Totals, short: int, context: Context) -> pd.DataFrame:
    causal = family_of(context.lens.model).causal
    counted, above, mass = totals.sinks.unbind(-1)
    replicates = totals.replicate_sinks[:, Sink.ABOVE] / totals.replicate_sinks[:, Sink.COUNTED]
    rows = []
    for layer, head in _heads(totals):
        n = int(counted[layer, head])
        low, high = interval(replicates[:, layer, head])
        rows.append(
            {
                "layer": layer,
                "head": head,
                "n": n,
                "left_out": short,
                "rate": float(above[layer, head]) / n if n else math.nan,
                "rate_low": low,
                "rate_high": high,
                "mass": float(mass[layer, head]) / n if n else math.nan,
                "status": ("ok" if n else "no_data") if causal else "not_applicable",
            }
        )
    return pd.DataFrame(rows)


def _logits_table(totals: Totals) -> pd.DataFrame:
    rows = []
    for group, name in enumerate(totals.groups):
        mean = totals.mean(Stat.LOGIT, group, Stat.PAIRS)
        square = totals.mean(Stat.LOGIT_SQUARE, group, Stat.PAIRS)
        sd = (square - mean.square()).clamp_min(0).sqrt()
        for layer, head in _heads(totals):
            n = int(totals.of(Stat.PAIRS, group)[layer, head])
            top = float(totals.extremes[layer, head, group, Extreme.LOGIT])
            rows.append(
                {
                    **_name(layer, head, name),
                    "n": n,
                    "mean": float(mean[layer, head]),
                    "sd": float(sd[layer, head]),
                    "maximum": top if n else math.nan,
                }
            )
    return pd.DataFrame(rows)


def _vectors_table(totals: Totals) -> pd.DataFrame:
    rows = []
    for group, name in enumerate(totals.groups):
        query, key = totals.mean(Stat.QUERY_NORM, group), totals.mean(Stat.KEY_NORM, group)
        cosine = totals.mean(Stat.COSINE, group, Stat.PAIRS)
        for layer, head in _heads(totals):
            here = (layer, head)
            n = int(totals.of(Stat.N, group)[here])
            unseen = n > 0 and math.isnan(query[here])
            rows.append(
                {
                    **_name(layer, head, name),
                    "n": 0 if unseen else n,
                    "query_norm": float(query[here]),
                    "key_norm": float(key[here]),
                    "cosine": float(cosine[here]),
                    "status": "not_applicable" if unseen else ("ok" if n else "no_data"),
                }
            )
    return pd.DataFrame(rows)


def _checks(totals: Totals, context: Context) -> tuple[Check, ...]:
    dtype = context.lens.placement.dtype
    found = []
    for extreme, name, doc in (
        (
            Extreme.EXCESS,
            "attention_entropy_bounds",
            "how far an entropy lies outside [0, ln n] for n visible keys, nats",
        ),
        (
            Extreme.RESIDUAL,
            "attention_recomputed",
            "attention output at each sequence's last position from the recomputed "
            "probabilities, against the model's: max |difference| / max |value|",
        ),
    ):
        worst = totals.extremes[..., extreme].max().item()
        tolerance = for_dtype(name, dtype)
        # Without a single query there is nothing to be wrong.
        found.append(Check(name, max(worst, 0.0), tolerance, worst <= tolerance, doc))
    return tuple(found)


def _warnings(totals: Totals, context: Context) -> tuple[str, ...]:
    lost = totals.sums[..., Stat.NAN].sum(2)
    where = [f"L{i}.H{j} ({int(lost[i, j])})" for i, j in lost.nonzero().tolist()]
    if not where:
        return ()
    shown = ", ".join(where[:8]) + (f" and {len(where) - 8} more heads" if len(where) > 8 else "")
    return (
        f"{context.lens.identity.name}: the attention of some queries is NaN and left out: {shown}",
    )


def _heads(totals: Totals) -> list[tuple[int, int]]:
    layers, heads = totals.sums.shape[:2]
    return [(layer, head) for layer in range(layers) for head in range(heads)]


def _name(layer: int, head: int, group: str) -> dict[str, object]:
    return {"layer": layer, "head": head, "group": group}
