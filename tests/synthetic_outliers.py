"""Model-up tables of ``outliers`` and ``outlier-ablation``, shaped like real ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.results import Headline

if TYPE_CHECKING:
    from tests.synthetic_results import Model

Rows = list[dict[str, Any]]
Tables = Mapping[str, Rows]
MASSIVE, OTHERS = 138, (447, 12, 78)
FIRST_TOKENS, REST = 126, 7812


def tables(model: Model, draw: np.random.Generator) -> dict[str, Rows]:
    """Tables of a model with one massive dimension at first tokens where norms are live."""
    return _outliers(model.layers, live=model.kind != "scale_free", draw=draw)


def headline(found: Tables) -> tuple[Headline, ...]:
    """Headline numbers of ``outliers``."""
    last = [row for row in found["kurtosis"] if row["group"] == "rest"][-1]
    count = sum(row["n"] for row in found["massive"])
    return (
        Headline("massive_activations", float(count), "activations", "at all depths", REST),
        Headline(
            "kurtosis_per_token",
            last["per_token"],
            "1",
            "of the final residual",
            REST,
            last["per_token_low"],
            last["per_token_high"],
        ),
    )


def _outliers(layers: int, *, live: bool, draw: np.random.Generator) -> dict[str, Rows]:
    made: dict[str, Rows] = {name: [] for name in ("layers", "massive", "kurtosis", "profile")}
    for depth in range(layers + 1):
        median = 0.2 * 1.3**depth
        for group, n in (("first", FIRST_TOKENS), ("rest", REST)):
            spike = live and group == "first" and 0 < depth < layers
            largest = 1600.0 if spike else 9 * median * draw.uniform(0.9, 1.1)
            norm = largest if spike else 14 * median
            point = {"point": f"residual.{depth}", "depth": depth}
            made["layers"].append(
                {
                    **point,
                    "group": group,
                    "n": n,
                    "largest": -largest,
                    "dimension": MASSIVE,
                    "position": 0 if group == "first" else 17,
                    "token": "<|bos|>" if group == "first" else ",",
                    "median": median,
                    "ratio": largest / median,
                    "massive": n if spike else 0,
                    "q50_norm": norm,
                    "mean_norm": norm * 1.02,
                }
            )
            if spike:
                made["massive"].append(
                    {
                        **point,
                        "group": group,
                        "dimension": MASSIVE,
                        "n": n,
                        "largest": -largest,
                        "ratio": largest / median,
                    }
                )
            made["kurtosis"].append(
                {
                    **point,
                    "order": 3 * depth,
                    "basis": "native",
                    "group": group,
                    "n": n,
                    "per_token": 4.0 + depth,
                    "per_token_low": 3.8 + depth,
                    "per_token_high": 4.2 + depth,
                    "excess": 1 + depth,
                    "per_feature": 2 + 5.0 * depth,
                }
            )
            made["profile"] += [
                {**point, "group": group, "dimension": j, "n": n, "mean_square_share": share}
                for j, share in zip((MASSIVE, *OTHERS), (0.3, 0.06, 0.02, 0.01), strict=True)
            ]
    return {**made, **_pooled(layers)}


def _pooled(layers: int) -> dict[str, Rows]:
    listed = list(zip((MASSIVE, *OTHERS), (0.9, 0.4, 0.1, 0.02), strict=True))
    groups = (("first", FIRST_TOKENS), ("rest", REST))
    criteria = ("absolute", "relative")
    return {
        "massive_positions": [{"position": 0, "n": FIRST_TOKENS, "share": 1.0}],
        "dimensions": [
            {
                "group": group,
                "dimension": j,
                "n": n,
                "mean_square_share": share / 3,
                "persistence_depths": share,
                "persistence_tokens": share / 2,
                "massive": 0,
            }
            for group, n in groups
            for j, share in listed
        ],
        "features": [
            {
                "basis": "native",
                "criterion": criterion,
                "group": group,
                "dimension": j,
                "outlier": share > 0.3,
                "n": n,
                "layer_share": share,
                "token_share": share / 2,
            }
            for criterion in criteria
            for group, n in groups
            for j, share in listed
        ],
        "feature_layers": [
            {
                "point": f"norm.{layer}.pre_{'attn' if feeds == 'attention' else 'mlp'}",
                "layer": layer,
                "feeds": feeds,
                "criterion": criterion,
                "dimension": j,
                "n": REST,
                "token_share": share * (layer + 1) / layers,
            }
            for criterion in criteria
            for layer in range(layers)
            for feeds in ("attention", "mlp")
            for j, share in listed
        ],
    }


def ablation_tables(model: Model, draw: np.random.Generator) -> dict[str, Rows]:
    """Tables of a model that dimensions matter to and in which a spike makes sinks."""
    return _ablation(model.layers, live=model.kind != "scale_free", draw=draw)


def ablation_headline(found: Tables) -> tuple[Headline, ...]:
    """Headline numbers of ``outlier-ablation``."""
    row = found["effects"][0]
    return (
        Headline(
            "delta_outlier_dimensions",
            row["delta_loss"],
            "nats/token",
            "outlier dimensions set to 0",
            REST,
            row["delta_low"],
            row["delta_high"],
        ),
    )


def _ablation(layers: int, *, live: bool, draw: np.random.Generator) -> dict[str, Rows]:
    costs = {
        ("dimensions", "residual", "outlier"): 1.3,
        ("dimensions", "residual", "random"): 0.05,
        ("dimensions", "norm_output", "outlier"): 0.7,
        ("dimensions", "norm_output", "random"): 0.02,
        ("massive", "zero", "outlier"): 0.9 if live else 0.01,
        ("massive", "mean", "outlier"): 0.004,
    }
    effects: Rows = []
    for (what, how, chosen), cost in costs.items():
        for seed in range(3) if chosen == "random" else (-1,):
            delta = cost * draw.uniform(0.8, 1.2)
            effects.append(
                {
                    "what": what,
                    "how": how,
                    "chosen": chosen,
                    "seed": pd.NA if seed < 0 else seed,
                    "dimensions": f"{MASSIVE}, 447" if chosen == "outlier" else "3, 9",
                    "target": "outlier features" if what == "dimensions" else "first token",
                    "n": REST,
                    "loss": 4 + delta,
                    "delta_loss": delta,
                    "delta_low": delta - 0.02,
                    "delta_high": delta + 0.02,
                    "drift": 0.9,
                    "drift_first": 0.4,
                }
            )
    sinks: Rows = [
        {
            "what": what,
            "how": how,
            "n": 100,
            "sink_rate": rate,
            "sink_low": rate - 0.03,
            "sink_high": rate + 0.03,
            "first_token_mass": rate,
        }
        for what, how, rate in (
            ("intact", "intact", 0.55),
            ("massive", "zero", 0.12 if live else 0.54),
            ("massive", "mean", 0.54),
        )
    ]
    chain: Rows = [
        {
            "layer": layer,
            "quantity": quantity,
            "tokens": tokens,
            "n": 126 if tokens == "spike" else REST,
            "value": value if tokens == "rest" else value * (0.1 if live else 0.95),
        }
        for layer in range(layers)
        for quantity, value in (("inverse_scale", 0.9), ("output_variance", 1.0))
        for tokens in ("spike", "rest")
    ]
    assert all(math.isfinite(row["value"]) for row in chain)
    return {"effects": effects, "sinks": sinks, "chain": chain}
