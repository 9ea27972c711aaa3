"""Plausible tables of the analyses of one prompt: attention, scales, patching."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from normlens.results import Headline

if TYPE_CHECKING:
    from tests.synthetic_results import Model

Rows = list[dict[str, Any]]
TOKENS = ("<|bos|>", "The", " key", " and", "\n", " the", " key")
SCORES = ("previous_token", "duplicate_token", "induction", "current_token", "first_token")


def attention(model: Model, draw: np.random.Generator) -> dict[str, Rows]:
    """The tables of ``prompt-attention`` of one model."""
    heads, queries, patterns = Rows(), Rows(), Rows()
    for layer in range(model.layers):
        for head in range(model.heads):
            here = {"layer": layer, "head": head}
            logits = draw.normal(0, 1.5, (len(TOKENS), len(TOKENS)))
            weights = np.tril(np.exp(logits))
            weights /= weights.sum(-1, keepdims=True)
            scores = {name: float(draw.uniform(0, 0.7)) for name in SCORES}
            best = max(scores, key=lambda name: scores[name])
            entropies = [_entropy(row[: i + 1]) for i, row in enumerate(weights)]
            heads.append(
                {
                    **here,
                    **scores,
                    "category": best if scores[best] >= 0.4 else "other",
                    "n": len(TOKENS) - 1,
                    "n_duplicate": 1,
                    "n_induction": 1,
                    "entropy": float(np.mean(entropies[1:])),
                    "normalised": float(draw.uniform(0.2, 0.9)),
                }
            )
            for query, row in enumerate(weights):
                ceiling = math.log(query + 1)
                queries.append(
                    {
                        **here,
                        "position": query,
                        "token": TOKENS[query],
                        "keys": query + 1,
                        "entropy": entropies[query],
                        "ceiling": ceiling,
                        "normalised": entropies[query] / ceiling if query else math.nan,
                        "first_mass": row[0],
                        "outside": 0.0,
                    }
                )
                patterns += [
                    {**here, "query": query, "key": key, "weight": row[key]}
                    for key in range(query + 1)
                ]
    return {"heads": heads, "queries": queries, "patterns": patterns}


def attention_headline(tables: dict[str, Rows]) -> tuple[Headline, ...]:
    """One of its headline numbers."""
    value = max(row["induction"] for row in tables["heads"])
    return (Headline("induction_largest", value, "1", "largest induction score", 1),)


def scale(model: Model, draw: np.random.Generator) -> dict[str, Rows]:
    """The tables of ``prompt-scale`` of one model."""
    live = model.kind != "scale_free"
    sites: Rows = [
        {"site": f"{layer}.{role}", "layer": layer, "role": role}
        for layer in range(model.layers)
        for role in ("pre_attn", "pre_mlp")
    ]
    sites.append({"site": "final", "layer": None, "role": "final"})
    scales, residual = Rows(), Rows()
    for order, site in enumerate(sites):
        for position, token in enumerate(TOKENS):
            size = (40.0 if position == 0 else 1.0) * (1 + order) * float(draw.uniform(0.8, 1.2))
            scales.append(
                {
                    **site,
                    "order": order,
                    "kind": "layer_norm" if live else "fixed_scale",
                    "head": None,
                    "position": position,
                    "token": token,
                    "applied": live,
                    "scale": size,
                    "input_norm": 8 * size,
                    "applied_scale": math.nan if live else 1.0 + order,
                }
            )
    for point in range(model.layers + 1):
        residual += [
            {
                "point": point,
                "position": position,
                "token": token,
                "norm": (300.0 if position == 0 else 8.0) * (1 + point),
            }
            for position, token in enumerate(TOKENS)
        ]
    return {"scale": scales, "residual": residual}


def scale_headline(tables: dict[str, Rows]) -> tuple[Headline, ...]:
    """One of its headline numbers."""
    doc = "norm of the last residual over that before block 0"
    return (Headline("growth", 4.0, "1", doc, len(tables["residual"])),)


def patching(model: Model, draw: np.random.Generator) -> dict[str, Rows]:
    """The tables of ``prompt-patching`` of one model."""
    recovery = Rows()
    points = {"residual": model.layers + 1, "attention": model.layers, "mlp": model.layers}
    for what, count in points.items():
        for point in range(count):
            for position, token in enumerate(TOKENS):
                value = float(draw.uniform(-0.2, 1.0)) if position else 0.0
                recovery.append(
                    {
                        "what": what,
                        "point": point,
                        "layer": None if point == model.layers else point,
                        "position": position,
                        "token": token,
                        "corrupted_token": " lock" if position == 2 else token,
                        "difference": 4 * value - 2,
                        "recovery": value,
                    }
                )
    runs: Rows = [
        {
            "run": run,
            "answer": " she",
            "wrong": " he",
            "difference": difference,
            "answer_probability": 0.3,
            "wrong_probability": 0.2,
        }
        for run, difference in (("clean", 2.0), ("corrupted", -2.0))
    ]
    return {"recovery": recovery, "runs": runs}


def patching_headline(tables: dict[str, Rows]) -> tuple[Headline, ...]:
    """One of its headline numbers."""
    difference = tables["runs"][0]["difference"]
    return (Headline("clean_difference", difference, "logits", "of the clean prompt", 1),)


def _entropy(weights: np.ndarray) -> float:
    return float(-(weights * np.log(weights)).sum())
