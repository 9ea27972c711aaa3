"""Plausible Results of every analysis, made from the declared schemas without any model.

The numbers have the shape of real ones (scales grow with depth, scale-free models have no
attribution error and no freeze sweep), so figures and reports of them look like real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from normlens import catalog
from normlens.results import Check, Column, Headline, Result, TableSchema, concat
from tests import (
    synthetic_attention,
    synthetic_curves,
    synthetic_depth,
    synthetic_outliers,
    synthetic_prompts,
)

MODEL = Column("model", "str", "", "name of the model")
STATUS = Column("status", "str", "", "ok, no_data, not_applicable or overflow")
REPLICATES = TableSchema(
    "replicates",
    "Bootstrap replicates of headline numbers.",
    (
        Column("headline", "str", "", "headline number"),
        Column("replicate", "int64", "", "index of the replicate"),
        Column("value", "float64", "", "its value"),
    ),
)
PROMPT = ("<|bos|>", "Alice", " took", " the", " key", " and", " opened", " the", " door", ",\n")
TARGETS = (*PROMPT[1:], " she")
TOKENS, SEQUENCES, DOCUMENTS = 7938, 126, 24


@dataclass(frozen=True)
class Model:
    """What a made-up model looks like."""

    name: str
    kind: str = "live"
    ancestor: str | None = None
    layers: int = 3
    heads: int = 4
    loss: float = 4.0
    seed: int = 0


FOUR = (
    Model("books-ln", loss=4.02),
    Model("books-control", ancestor="books-ln", loss=4.018, seed=1),
    Model("books-aux", ancestor="books-ln", loss=4.021, seed=2),
    Model("books-lnfree", "scale_free", "books-ln", loss=4.031, seed=3),
)


def results(models: Sequence[Model] = FOUR) -> list[Result]:
    """One Result per analysis with all models side by side."""
    return [result(analysis.name, models) for analysis in catalog.ALL]


def result(analysis: str, models: Sequence[Model] = FOUR) -> Result:
    """The models' Results of one analysis, joined."""
    return concat([of_model(analysis, model, models) for model in models])


def of_model(analysis: str, model: Model, among: Sequence[Model] = FOUR) -> Result:
    """The Result of one analysis on one model."""
    declared = catalog.get(analysis)
    schemas = {
        schema.name: TableSchema(schema.name, schema.doc, (MODEL, *schema.columns, STATUS))
        for schema in (*declared.tables, REPLICATES)
    }
    reason = ""
    if analysis == "freeze-sweep" and model.kind == "scale_free":
        reason = "every scale of this model is fixed already"
    filled = {} if reason else _MAKERS[analysis](model, np.random.default_rng(model.seed))
    headline = () if reason else _HEADLINES[analysis](filled)
    tables = {
        name: _conform(filled.get(name, []), schema, model.name) for name, schema in schemas.items()
    }
    tables["replicates"] = _replicates(headline, schemas["replicates"], model)
    return Result(
        analysis=analysis,
        models=(model.name,),
        tables=tables,
        schemas=schemas,
        headline={model.name: headline},
        checks={model.name: () if reason else _checks(analysis, model)},
        provenance={model.name: provenance(model, among)},
        not_applicable={model.name: reason} if reason else {},
    )


def provenance(model: Model, among: Sequence[Model] = FOUR) -> dict[str, Any]:
    """What the runner records about a model."""
    kind = "fixed_scale" if model.kind == "scale_free" else "layer_norm"
    return {
        "name": model.name,
        "source": f"bundled:{model.name}",
        "weights_sha256": f"{model.seed:064x}",
        "kind": model.kind,
        "ancestor": model.ancestor,
        "weight_cosine_to_reference": 0.987 if _root(model) == _root(among[0]) else 0.02,
        "tokenizer_sha256": "ab" * 32,
        "corpus": "books-held-out",
        "corpus_sha256": "cd" * 32,
        "bos": "first token of every sequence",
        "sequences": SEQUENCES,
        "tokens": TOKENS,
        "dtype": "float32",
        "device": "cpu",
        "seed": 0,
        "versions": {"normlens": "0.1.0", "torch": "2.13.0"},
        "command": "normlens compare books-ln books-lnfree --out out",
        "quantised_from": None,
        "sites": [
            {
                "label": label,
                "kind": kind,
                "eps": None if kind == "fixed_scale" else 1e-5,
                "residual": 2.4e-7,
                "verified": True,
            }
            for label, _, _ in _sites(model)
        ],
        "edits": [],
        "attention": "sdpa",
        "batch_size": 16,
        "created": "2031-01-01T00:00:00+00:00",
    }


Rows = list[dict[str, Any]]


def _root(model: Model) -> str:
    return model.ancestor or model.name


def _sites(model: Model) -> list[tuple[str, int | None, str]]:
    blocks = [
        (f"{layer}.{role}", layer, role)
        for layer in range(model.layers)
        for role in ("pre_attn", "pre_mlp")
    ]
    return [*blocks, ("final", None, "final")]


def _site_columns(model: Model) -> Rows:
    kind = "fixed_scale" if model.kind == "scale_free" else "layer_norm"
    return [
        {"site": site, "layer": layer, "role": role, "order": order, "kind": kind}
        for order, (site, layer, role) in enumerate(_sites(model))
    ]


def _scale(model: Model, draw: np.random.Generator) -> dict[str, Rows]:
    live = model.kind != "scale_free"
    rows: Rows = []
    for site in _site_columns(model):
        typical = 0.3 * 1.35 ** site["order"] * draw.uniform(0.9, 1.1)
        for group in ("first", "rest"):
            ratio = (1.7 if live else 1.05) if group == "first" else 1.0
            spread = draw.uniform(0.07, 0.14) if group == "rest" else 0.01
            mean = typical * ratio
            rows.append(
                {
                    **site,
                    "group": group,
                    "applied": live,
                    "n": SEQUENCES if group == "first" else TOKENS - SEQUENCES,
                    "mean": mean,
                    "sd": spread * mean,
                    "spread": spread,
                    "spread_low": spread * 0.93,
                    "spread_high": spread * 1.08,
                    "q05": mean * (1 - 1.5 * spread),
                    "q50": mean * 0.99,
                    "q95": mean * (1 + 1.8 * spread),
                    "minimum": mean * 0.7,
                    "maximum": mean * 1.6,
                    "ones_share": draw.uniform(0, 0.02),
                    "applied_scale": math.nan if live else typical * 1.02,
                }
            )
    return {"scale": rows}


def _curves(model: Model, draw: np.random.Generator) -> dict[str, Rows]:
    live = model.kind != "scale_free"
    return synthetic_curves.tables(_site_columns(model), live=live, draw=draw)


def _freeze_sweep(model: Model, draw: np.random.Generator) -> dict[str, Rows]:
    sites = _site_columns(model)
    order = [s for s in sites if s["role"] == "pre_mlp"]
    order += [s for s in sites if s["role"] == "pre_attn"] + [
        s for s in sites if s["layer"] is None
    ]
    rows: Rows = []
    total = 0.0
    for step, site in enumerate(order, start=1):
        alone = float(draw.lognormal(-5.5, 1.6)) * (8 if site["role"] == "final" else 1) - 0.0008
        total += abs(alone) * 1.4
        for mode, delta in (("single", alone), ("cumulative", total)):
            rows.append(
                {
                    **site,
                    "mode": mode,
                    "step": step,
                    "n": 2016,
                    "loss": model.loss + delta,
                    "delta_loss": delta,
                    "delta_low": delta - 0.2 * abs(delta) - 0.0004,
                    "delta_high": delta + 0.2 * abs(delta) + 0.0004,
                    "kl": abs(delta) * 1.2 + 2e-4,
                    "frozen_scale": 0.3 * 1.3 ** site["order"],
                    "frozen_scale_first": 0.5 * 1.3 ** site["order"],
                }
            )
    return {"sweep": rows}


def _components(model: Model) -> Rows:
    rows: Rows = [
        {"component": name, "layer": None, "head": None, "type": "embedding"}
        for name in ("embed", "pos_embed")
    ]
    for layer in range(model.layers):
        for head in range(model.heads):
            name = f"L{layer}.H{head}"
            rows.append({"component": name, "layer": layer, "head": head, "type": "head"})
        for part in ("attn_bias", "mlp"):
            name = f"L{layer}.{part}"
            rows.append({"component": name, "layer": layer, "head": None, "type": part})
    return rows


def _logit_attribution(model: Model, draw: np.random.Generator) -> dict[str, Rows]:
    rows: Rows = []
    for component in _components(model):
        effect = float(draw.normal(0.15, 0.35)) * (4 if component["type"] == "mlp" else 1)
        nmae = 0.0 if model.kind == "scale_free" else float(draw.uniform(0.2, 0.75))
        repair = nmae * effect * 0.6
        rows.append(
            {
                **component,
                "n": TOKENS - SEQUENCES,
                "dla": effect - repair,
                "direct_effect": effect,
                "self_repair": repair,
                "mean_abs_error": nmae * abs(effect) * 1.2,
                "mean_abs_effect": abs(effect) * 1.2,
                "nmae": nmae,
                "nmae_low": nmae * 0.93,
                "nmae_high": nmae * 1.08,
            }
        )
    groups: Rows = []
    for kind in dict.fromkeys(row["type"] for row in rows):
        errors = [row["nmae"] for row in rows if row["type"] == kind]
        mean = float(np.mean(errors))
        groups.append(
            {
                "type": kind,
                "components": len(errors),
                "n": TOKENS - SEQUENCES,
                "nmae": mean,
                "nmae_pooled": mean * 0.92,
                "nmae_low": mean * 0.95,
                "nmae_high": mean * 1.06,
                "nmae_min": min(errors),
                "nmae_max": max(errors),
            }
        )
    return {"components": rows, "groups": groups}


def _prompt_attribution(model: Model, draw: np.random.Generator) -> dict[str, Rows]:
    biases: Rows = [
        {"component": name, "layer": None, "head": None, "type": name}
        for name in ("norm_bias", "unembed_bias")
    ]
    waterfall, positions = Rows(), Rows()
    for position, (token, target) in enumerate(zip(PROMPT, TARGETS, strict=True)):
        total = 0.0
        for component in (*_components(model), *biases):
            bias = component in biases
            dla = float(draw.normal(0.2, 0.6)) * (3 if component["type"] == "mlp" else 1)
            repair = math.nan if bias else (0.0 if model.kind == "scale_free" else -0.3 * dla)
            total += dla
            waterfall.append(
                {
                    **component,
                    "position": position,
                    "token": token,
                    "target": target,
                    "dla": dla,
                    "direct_effect": dla + repair,
                    "self_repair": repair,
                }
            )
        positions.append(
            {
                "position": position,
                "token": token,
                "target": target,
                "logit": total + 2e-6,
                "sum": total,
                "scale": 3.1,
                "probability": float(draw.uniform(0.01, 0.9)),
            }
        )
    return {"waterfall": waterfall, "positions": positions}


def _output(model: Model, draw: np.random.Generator) -> dict[str, Rows]:
    groups = {"all": TOKENS, "rest": TOKENS - SEQUENCES, "first": SEQUENCES}
    summary: Rows = [
        {
            "group": group,
            "n": n,
            "cross_entropy": loss,
            "cross_entropy_low": loss - 0.06,
            "cross_entropy_high": loss + 0.06,
            "perplexity": math.exp(loss),
            "entropy": loss - 0.08,
            "ece": 0.012 + 0.004 * model.seed,
            "top1": 0.27,
        }
        for group, n in groups.items()
        for loss in (model.loss + (1.6 if group == "first" else 0),)
    ]
    levels = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
    quantiles: Rows = [
        {"quantile": q, "cross_entropy": model.loss * (-math.log(1 - q)) ** 0.8} for q in levels
    ]
    calibration: Rows = []
    for low in np.arange(15) / 15:
        confidence = low + 1 / 30
        calibration.append(
            {
                "low": low,
                "high": low + 1 / 15,
                "n": int(2400 * math.exp(-4 * low)),
                "confidence": confidence,
                "accuracy": float(np.clip(confidence - 0.05 * low + draw.normal(0, 0.01), 0, 1)),
            }
        )
    worst: Rows = [
        {
            "rank": rank,
            "sequence": 7 * rank,
            "document": f"book-{rank}",
            "n": 63,
            "cross_entropy": 6 - 0.1 * rank,
            "text": "=SUM(A1) <b>said</b> $x$ the 🙂",
        }
        for rank in (1, 2, 3)
    ]
    return {"summary": summary, "quantiles": quantiles, "calibration": calibration, "worst": worst}


_MAKERS: Mapping[str, Callable[[Model, np.random.Generator], dict[str, Rows]]] = {
    "output": _output,
    "scale": _scale,
    "curves": _curves,
    "freeze-sweep": _freeze_sweep,
    "logit-attribution": _logit_attribution,
    "prompt-attribution": _prompt_attribution,
    "prompt-attention": synthetic_prompts.attention,
    "prompt-scale": synthetic_prompts.scale,
    "prompt-patching": synthetic_prompts.patching,
    "divergence": synthetic_depth.divergence,
    "residual": synthetic_depth.residual,
    "branches": synthetic_depth.branches,
    "gradients": synthetic_depth.gradients,
    "attention-entropy": synthetic_attention.tables,
    "outliers": synthetic_outliers.tables,
    "outlier-ablation": synthetic_outliers.ablation_tables,
}


def _number(name: str, value: float, unit: str, doc: str, n: int, width: float) -> Headline:
    return Headline(name, value, unit, doc, n, value - width, value + width)


def _output_headline(tables: Mapping[str, Rows]) -> tuple[Headline, ...]:
    row = tables["summary"][0]
    return (
        _number("cross_entropy", row["cross_entropy"], "nats/token", "mean loss", TOKENS, 0.06),
        Headline("ece", row["ece"], "1", "expected calibration error", TOKENS),
    )


def _scale_headline(tables: Mapping[str, Rows]) -> tuple[Headline, ...]:
    spread = [row["spread"] for row in tables["scale"] if row["group"] == "rest"]
    return (
        _number("median_spread", float(np.median(spread)), "1", "median over sites", TOKENS, 0.01),
    )


def _sweep_headline(tables: Mapping[str, Rows]) -> tuple[Headline, ...]:
    last = tables["sweep"][-1]["delta_loss"]
    return (_number("all_frozen", last, "nats/token", "all scales fixed", 2016, 0.1),)


def _attribution_headline(tables: Mapping[str, Rows]) -> tuple[Headline, ...]:
    return (
        _number("nmae_heads", tables["groups"][1]["nmae"], "1", "mean NMAE of heads", TOKENS, 0.03),
    )


def _prompt_headline(tables: Mapping[str, Rows]) -> tuple[Headline, ...]:
    last = tables["positions"][-1]
    return (Headline("probability", last["probability"], "1", "of the last target", 1),)


_HEADLINES: Mapping[str, Callable[[Mapping[str, Rows]], tuple[Headline, ...]]] = {
    "output": _output_headline,
    "scale": _scale_headline,
    "curves": synthetic_curves.headline,
    "freeze-sweep": _sweep_headline,
    "logit-attribution": _attribution_headline,
    "prompt-attribution": _prompt_headline,
    "prompt-attention": synthetic_prompts.attention_headline,
    "prompt-scale": synthetic_prompts.scale_headline,
    "prompt-patching": synthetic_prompts.patching_headline,
    "divergence": synthetic_depth.divergence_headline,
    "residual": synthetic_depth.residual_headline,
    "branches": synthetic_depth.branches_headline,
    "gradients": synthetic_depth.gradients_headline,
    "attention-entropy": synthetic_attention.headline,
    "outliers": synthetic_outliers.headline,
    "outlier-ablation": synthetic_outliers.ablation_headline,
}


def _checks(analysis: str, model: Model) -> tuple[Check, ...]:
    value = 1e-7 * (1 + model.seed)
    return (Check(f"{analysis}: sums agree", value, 1e-5, True, "two ways to the same number"),)


def _replicates(headline: Sequence[Headline], schema: TableSchema, model: Model) -> pd.DataFrame:
    # Documents vary alike in every model, and a little on top in each: paired replicates.
    shared = np.random.default_rng(99).normal(size=200)
    own = np.random.default_rng(model.seed).normal(size=200)
    rows: Rows = [
        {"headline": h.name, "replicate": i, "value": h.value + 0.03 * shared[i] + 0.002 * own[i]}
        for h in headline
        if math.isfinite(h.low)
        for i in range(200)
    ]
    return _conform(rows, schema, model.name)


def _conform(rows: Rows, schema: TableSchema, model: str) -> pd.DataFrame:
    full = [{"model": model, "status": "ok", **row} for row in rows]
    return pd.DataFrame(
        {c.name: pd.array([row[c.name] for row in full], dtype=c.dtype) for c in schema.columns}
    )
