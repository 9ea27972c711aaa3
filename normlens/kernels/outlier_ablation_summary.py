"""From the statistics of ``outlier-ablation`` to its tables, headline numbers and checks."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from normlens.capture.protocol import Finding
from normlens.capture.state import State
from normlens.capture.statistics import interval
from normlens.kernels.outlier_plan import Plan
from normlens.kernels.outlier_watch import QUANTITIES
from normlens.models.lens import Lens
from normlens.results import Check, Headline
from normlens.tolerances import for_dtype

FIRST, REST = 0, 1
Rows = list[dict[str, Any]]


def summarise(state: State, plan: Plan) -> Finding:
    """Tables, headline numbers, check and warnings of ``outlier-ablation``."""
    headline, replicates = _headline(state, plan)
    return Finding(
        tables={
            "effects": pd.DataFrame(_effects(state, plan)),
            "sinks": pd.DataFrame(_sinks(state, plan)),
            "chain": pd.DataFrame(_chain(state)),
        },
        headline=headline,
        checks=(_check(state, plan.lens),),
        warnings=_warnings(state, plan),
        replicates=replicates,
    )


def _deltas(state: State, variant: int) -> Tensor:
    n, delta = state.tensors["replicates"][variant]
    return delta / n


def _effects(state: State, plan: Plan) -> Rows:
    rows: Rows = []
    norm = state.tensors["norm"] / state.tensors["norm_n"]  # [group pass]
    for i, variant in enumerate(plan.variants):
        n = int(state.tensors["n"][i])
        loss, delta = (state.tensors["sums"][i] / n).tolist()
        low, high = interval(_deltas(state, i)) if n else (math.nan, math.nan)
        drift = (norm[:, i + 1] / norm[:, 0]).tolist() if n else [math.nan] * 2
        overflow = int(state.tensors["overflow"][i])
        rows.append(
            {
                "what": variant.what,
                "how": variant.how,
                "chosen": variant.chosen,
                "seed": pd.NA if variant.seed is None else variant.seed,
                "dimensions": ", ".join(map(str, plan.dimensions(variant))),
                "target": plan.words(variant),
                "n": n,
                "loss": loss,
                "delta_loss": delta,
                "delta_low": low,
                "delta_high": high,
                "drift": drift[REST],
                "drift_first": drift[FIRST],
                "status": "overflow" if overflow else "ok" if n else "no_data",
            }
        )
    return rows


def _sink_passes(plan: Plan) -> list[tuple[str, str]]:
    ablated = [(v.what, v.how) for v in plan.variants if v.chosen == "outlier"]
    return [("intact", "intact"), *ablated]


def _sinks(state: State, plan: Plan) -> Rows:
    n = int(state.tensors["sink_sequences"])
    rows: Rows = []
    for i, (what, how) in enumerate(_sink_passes(plan)):
        heads, sinks, mass = state.tensors["sinks"][i].tolist()
        low, high = interval(_sink_rates(state, i)) if n else (math.nan, math.nan)
        rows.append(
            {
                "what": what,
                "how": how,
                "n": n,
                "sink_rate": sinks / heads if n else math.nan,
                "sink_low": low,
                "sink_high": high,
                "first_token_mass": mass / heads if n else math.nan,
            }
        )
    return rows


def _sink_rates(state: State, which: int) -> Tensor:
    heads, sinks, _ = state.tensors["sink_replicates"][which]
    return sinks / heads


def _chain(state: State) -> Rows:
    total, count = state.tensors["chain"], state.tensors["chain_n"]
    rows: Rows = []
    for layer in range(len(total)):
        for q, quantity in enumerate(QUANTITIES):
            known = bool(state.tensors["chain_known"][layer, q])
            for g, tokens in enumerate(("spike", "rest")):
                n = int(count[layer, q, g])
                rows.append(
                    {
                        "layer": layer,
                        "quantity": quantity,
                        "tokens": tokens,
                        "n": n,
                        "value": float(total[layer, q, g]) / n if n else math.nan,
                        "status": "ok" if n else "no_data" if known else "not_applicable",
                    }
                )
    return rows


def _headline(state: State, plan: Plan) -> tuple[tuple[Headline, ...], dict[str, Tensor]]:
    replicates: dict[str, Tensor] = {}
    shown: list[Headline] = []

    def change(name: str, doc: str, which: list[int]) -> None:
        n = int(state.tensors["n"][which].max()) if which else 0
        if n == 0:
            shown.append(Headline(name, math.nan, "nats/token", f"{doc}; no predictions", 0))
            return
        delta = state.tensors["sums"][which, 1] / state.tensors["n"][which]
        replicates[name] = torch.stack([_deltas(state, i) for i in which]).mean(0)
        low, high = interval(replicates[name])
        shown.append(Headline(name, float(delta.mean()), "nats/token", doc, n, low, high))

    def at(what: str, how: str, chosen: str) -> list[int]:
        return [
            i
            for i, v in enumerate(plan.variants)
            if (v.what, v.how, v.chosen) == (what, how, chosen)
        ]

    count = len(plan.targets.dimensions)
    words = f"{count} dimensions, chosen by: {plan.targets.dimensions_words}"
    loss = "change of the loss with"
    change(
        "delta_outlier_dimensions",
        f"{loss} the residual stream set to 0 in {words}",
        at("dimensions", "residual", "outlier"),
    )
    change(
        "delta_random_dimensions",
        f"the same with as many random dimensions, mean of {plan.parameters.random_seeds} draws",
        at("dimensions", "residual", "random"),
    )
    for how in ("zero", "mean"):
        change(
            f"delta_massive_{how}",
            f"{loss} these entries set to {how}: {plan.targets.entries_words}",
            at("massive", how, "outlier"),
        )
    for name, (what, how), doc in (
        ("sink_rate", ("intact", "intact"), "share of heads that are a sink"),
        ("sink_rate_massive_zero", ("massive", "zero"), "the same with these entries set to 0"),
    ):
        shown.append(_sink_headline(state, plan, name, _sink_passes(plan).index((what, how)), doc))
        if shown[-1].n:
            replicates[name] = _sink_rates(state, _sink_passes(plan).index((what, how)))
    return tuple(shown), replicates


def _sink_headline(state: State, plan: Plan, name: str, which: int, doc: str) -> Headline:
    n = int(state.tensors["sink_sequences"])
    tokens = plan.parameters.sink_tokens
    if n == 0:
        return Headline(name, math.nan, "1", f"{doc}; no sequence has {tokens} tokens", 0)
    heads, sinks, _ = state.tensors["sinks"][which].tolist()
    low, high = interval(_sink_rates(state, which))
    doc = f"{doc} (attention to the first token above {plan.parameters.sink_epsilon:g}, T={tokens})"
    return Headline(name, sinks / heads, "1", doc, n, low, high)


def _check(state: State, lens: Lens) -> Check:
    value = float(state.tensors["identity"])
    tolerance = for_dtype("live_freeze", lens.placement.dtype)
    doc = "relative change of the logits when no dimension is set to 0"
    return Check("no_ablation_keeps_logits", value, tolerance, value <= tolerance, doc)


def _warnings(state: State, plan: Plan) -> tuple[str, ...]:
    said: list[str] = []
    worst = int(state.tensors["overflow"].argmax())
    lost = int(state.tensors["overflow"][worst])
    if lost:
        variant = plan.variants[worst]
        said.append(
            f"up to {lost} predictions have a NaN or infinite logit in "
            f"{plan.lens.placement.dtype} ({variant.what}, {variant.how}) and are left out of "
            "their row; open the model in float32"
        )
    if not plan.targets.massive:
        said.append(f"{plan.lens.identity.name}: {plan.targets.entries_words}")
    if plan.constant:
        said.append(
            f"{plan.lens.identity.name}: these entries have the same value in every sequence, so "
            "setting them to their mean changes nothing and is no test"
        )
    known = state.tensors["chain_known"].amax(0).tolist()
    unknown = [q.replace("_", " ") for q, k in zip(QUANTITIES, known, strict=True) if not k]
    if unknown:
        said.append(
            f"{plan.lens.identity.name}: no {' and no '.join(unknown)} in the chain; values are "
            "read where they have a linear of their own, scales at norms before attention"
        )
    return tuple(said)
