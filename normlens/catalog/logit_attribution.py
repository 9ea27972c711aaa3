"""Declaration of ``logit-attribution`` (corpus)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import COMPONENT, HEAD, LAYER, N, measure
from normlens.catalog.declaration import Analysis, Citation, Need
from normlens.results import Column, TableSchema


@dataclass(frozen=True)
class LogitAttributionParameters:
    """Parameters of ``logit-attribution``."""

    mode: Literal["default", "golden"] = Field(
        default="default",
        description=(
            "default: every position, next token, documents resampled; golden: the published "
            "procedure (last position, current token, no BOS, heads and samples resampled jointly)"
        ),
    )


LOGIT_ATTRIBUTION = Analysis(
    name="logit-attribution",
    title="Direct logit attribution and its error",
    question="How wrong is direct logit attribution because it freezes the final norm's scale?",
    explanation=(
        "With `u` the gain-folded unembedding column of the target token, centred over the "
        "vocabulary, and tildes for centring where the norm centres: "
        "`DLA(c) = c~.u / scale(r)` with the cached scale, and the exact direct effect "
        "`DE(c) = r~.u/scale(r) - (r-c)~.u/scale(r-c)`. Their difference is the norm-mediated "
        "self-repair. `NMAE = mean|DLA - DE| / mean|DE|` over tokens. It is 0 for a scale-free "
        "final norm. Gauge: the value bias stays in its head, the output bias of attention is a "
        "component of its own. Where heads pass a norm after attention (Gemma 2 and 3, OLMo 2 and "
        "3, GLM-4) its scale stays frozen in both DLA and DE, and its bias joins the attention "
        "bias: DE recomputes the final norm alone. Logits are those before soft-capping and logit "
        "scale (Gemma 2, Cohere, Granite)."
    ),
    parameters=LogitAttributionParameters,
    topic="attribution",
    runs_on="corpus",
    style="streaming",
    needs=frozenset({Need.COMPONENTS, Need.LOGITS}),
    tables=(
        TableSchema(
            "components",
            "One row per component.",
            (
                COMPONENT,
                LAYER,
                HEAD,
                Column("type", "str", "", "head, mlp, attn_bias or embedding"),
                N,
                measure("dla", "logits", "mean direct logit attribution to the target token"),
                measure("direct_effect", "logits", "mean exact direct effect"),
                measure("self_repair", "logits", "mean DE - DLA, the norm-mediated self-repair"),
                measure("mean_abs_error", "logits", "mean |DLA - DE|"),
                measure("mean_abs_effect", "logits", "mean |DE|"),
                measure("nmae", "1", "mean |DLA - DE| / mean |DE|"),
                measure("nmae_low", "1", "95 % bootstrap interval"),
                measure("nmae_high", "1", "95 % bootstrap interval"),
            ),
        ),
        TableSchema(
            "groups",
            "Pooled over the components of a type.",
            (
                Column("type", "str", "", "head, mlp, attn_bias or embedding"),
                Column("components", "int64", "", "number of components"),
                N,
                measure("nmae", "1", "mean over components of their NMAE (golden mode: pooled)"),
                measure("nmae_pooled", "1", "sum |DLA - DE| / sum |DE| over components and tokens"),
                measure("nmae_low", "1", "95 % bootstrap interval of nmae"),
                measure("nmae_high", "1", "95 % bootstrap interval of nmae"),
                measure("nmae_min", "1", "smallest component NMAE"),
                measure("nmae_max", "1", "largest component NMAE"),
            ),
        ),
    ),
    figures=(
        "logit_attribution:nmae_heads",
        "logit_attribution:dla_against_effect",
        "logit_attribution:groups",
    ),
    kernel="logit_attribution:KERNEL",
    citations=(
        Citation(
            "Baroni et al. 2025, Transformers Don't Need LayerNorm at Inference Time", "2507.02559"
        ),
        Citation(
            "Rushing & Nanda 2024, Explorations of Self-Repair in Language Models", "2402.15390"
        ),
    ),
    version=2,
)
