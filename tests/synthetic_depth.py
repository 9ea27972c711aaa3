"""Made-up tables and headline numbers of what is seen over depth, and of divergence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from normlens.results import Headline

Rows = list[dict[str, Any]]
TOKENS, FIRSTS = 7938, 126


def _around(name: str, value: float, width: float = 0.05) -> dict[str, float]:
    spread = width * abs(value)
    return {name: value, f"{name}_low": value - spread, f"{name}_high": value + spread}


def residual(model: Any, draw: np.random.Generator) -> dict[str, Rows]:
    """Growth in one leap and then slowly; a first token that lags in a scale-free model."""
    points, first, steps = Rows(), Rows(), Rows()
    early = 1.2 if model.kind == "scale_free" else 2.4
    for point in range(model.layers + 1):
        growth = 25 * 1.2**point if point else 1.0
        for group, n, scale in (("first", FIRSTS, early), ("rest", TOKENS, 1.0)):
            norm = scale * growth * float(draw.uniform(0.95, 1.05))
            points.append(
                {
                    "point": point,
                    "group": group,
                    "n": n,
                    "norm": norm * 1.02,
                    "q50": norm,
                    "typical": norm,
                    "variance": norm**2 / 192,
                    **_around("growth", growth),
                }
            )
        ratio = _around("ratio", early * float(draw.uniform(0.9, 1.1)))
        first.append({"point": point, "n": TOKENS, **ratio, "q50_ratio": ratio["ratio"]})
    for layer in range(model.layers):
        for group, n in (("first", FIRSTS), ("rest", TOKENS)):
            angle = (0.45 if layer == 0 else 0.1) * float(draw.uniform(0.9, 1.1))
            cosine = math.cos(math.pi * angle)
            steps.append(
                {
                    "layer": layer,
                    "group": group,
                    "n": n,
                    "cosine": cosine,
                    "cosine_centred": cosine,
                    "cosine_trimmed": cosine - 0.02,
                    **_around("influence", 1 - cosine),
                    **_around("angular_distance", angle),
                }
            )
    return {"points": points, "first_token": first, "steps": steps}


def branches(model: Any, draw: np.random.Generator) -> dict[str, Rows]:
    """An MLP that dwarfs the embeddings, then additions of a quarter."""
    rows: Rows = []
    for group, n in (("first", FIRSTS), ("rest", TOKENS)):
        for branch in ("attention", "mlp"):
            for layer in range(model.layers):
                ratio = 0.25 * float(draw.uniform(0.8, 1.2)) * (80 if layer == 0 else 1)
                cosine = float(draw.normal(0, 0.15))
                rows.append(
                    {
                        "layer": layer,
                        "branch": branch,
                        "group": group,
                        "n": n,
                        "norm": 30 * ratio,
                        **_around("ratio", ratio),
                        "cosine": cosine,
                        "cosine_centred": cosine,
                    }
                )
    return {"branches": rows}


def gradients(model: Any, draw: np.random.Generator) -> dict[str, Rows]:
    """Gradients that fall with depth as the residual grows."""
    points, norms, parameters = Rows(), Rows(), Rows()
    kind = "fixed_scale" if model.kind == "scale_free" else "layer_norm"
    for group, n in (("first", 16), ("rest", 2009)):
        for point in range(model.layers + 1):
            relative = 30.0 if point == 0 else 1.3
            points.append(
                {
                    "point": point,
                    "group": group,
                    "n": n,
                    **_around("gradient", 0.5 * relative),
                    "relative": relative,
                    **_around("sensitivity", 15 * float(draw.uniform(0.8, 1.2))),
                }
            )
        roles = [(layer, role) for layer in range(model.layers) for role in ("pre_attn", "pre_mlp")]
        for order, (layer, role) in enumerate([*roles, (None, "final")]):
            norms.append(
                {
                    "site": role if layer is None else f"{layer}.{role}",
                    "layer": layer,
                    "role": role,
                    "order": order,
                    "kind": kind,
                    "group": group,
                    "n": n,
                    **_around("attenuation", 9.0 if order < 2 else 0.45),
                }
            )
    for layer in range(model.layers):
        for part, size in (("norms", 0.1), ("attention", 0.6), ("mlp", 0.7)):
            parameters.append(
                {
                    "layer": layer,
                    "part": part,
                    "n": 2025,
                    **_around("gradient", size),
                    **_around("sensitivity", 15 * size),
                }
            )
    return {"points": points, "norms": norms, "parameters": parameters}


def divergence(model: Any, draw: np.random.Generator) -> dict[str, Rows]:
    """Small divergences; one class of tokens that a model has lost."""
    jsd = 0.012 + 0.004 * model.seed

    def row(n: int, factor: float = 1.0, delta: float = 0.01) -> dict[str, Any]:
        return {
            "n": n,
            **_around("jsd", jsd * factor),
            **_around("kl_model_reference", 4 * jsd * factor),
            **_around("kl_reference_model", 4.2 * jsd * factor),
            **_around("agreement", 0.8, 0.01),
            "loss": model.loss + delta,
            "reference_loss": model.loss,
            **_around("delta_loss", delta * float(draw.uniform(0.8, 1.2)), 0.4),
        }

    groups = {"all": TOKENS, "rest": TOKENS - FIRSTS, "first": FIRSTS}
    named = {
        "kind": ("word start", "word continuation", "punctuation", "other"),
        "context": ("new", "repeated", "induction"),
        "frequency": ("most frequent fifth", "rarest fifth"),
    }
    classes = [
        {"partition": partition, "token_class": name}
        | row(900, 4.0 if name == "other" else 1.0, 3.0 if name == "other" else 0.01)
        for partition, names in named.items()
        for name in names
    ]
    bounds = [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15)]
    worst = [
        {
            "by": by,
            "rank": rank,
            "sequence": 3 * rank,
            "document": f"book-{rank}",
            "position": 12,
            "context": "=cmd <b>he</b> said $x$ the 🙂",
            "token": " of",
            "top": "</s>",
            "reference_top": " of",
            "jsd": 0.4,
            "kl_model_reference": 2.0,
            "kl_reference_model": 2.5,
            "loss": 6.0,
            "reference_loss": 2.0,
            "delta_loss": 4.0,
        }
        for by in ("jsd", "loss rise", "loss fall")
        for rank in (1, 2)
    ]
    return {
        "summary": [{"group": group} | row(n) for group, n in groups.items()],
        "classes": classes,
        "positions": [{"low": low, "high": high} | row(500) for low, high in bounds],
        "worst": worst,
    }


def _number(name: str, row: Mapping[str, Any], column: str, unit: str = "1") -> Headline:
    ends = row[f"{column}_low"], row[f"{column}_high"]
    return Headline(name, row[column], unit, "made up", row["n"], *ends)


def residual_headline(tables: Mapping[str, Rows]) -> tuple[Headline, ...]:
    """Growth of the last point."""
    return (_number("growth", tables["points"][-1], "growth"),)


def branches_headline(tables: Mapping[str, Rows]) -> tuple[Headline, ...]:
    """The last block's ratio."""
    return (_number("mlp_ratio", tables["branches"][-1], "ratio"),)


def gradients_headline(tables: Mapping[str, Rows]) -> tuple[Headline, ...]:
    """Sensitivity of the last point."""
    return (_number("sensitivity", tables["points"][-1], "sensitivity", "nats"),)


def divergence_headline(tables: Mapping[str, Rows]) -> tuple[Headline, ...]:
    """Divergence over all tokens."""
    row = tables["summary"][0]
    return (
        _number("jsd", row, "jsd", "nats"),
        _number("delta_loss", row, "delta_loss", "nats/token"),
    )
