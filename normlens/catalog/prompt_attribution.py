"""Declaration of ``prompt-attribution``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import COMPONENT, HEAD, LAYER, measure
from normlens.catalog.declaration import Analysis, Citation, Need
from normlens.results import Column, TableSchema


@dataclass(frozen=True)
class PromptAttributionParameters:
    """Parameters of ``prompt-attribution``."""

    prompt: str = Field(
        default="Alice took the key and opened the door, and then she",
        min_length=1,
        max_length=100_000,
        description="text to analyse",
    )
    target: str = Field(
        default="",
        max_length=1000,
        description="single token to attribute at the last position; empty: the top prediction",
    )
    against: str = Field(
        default="",
        max_length=1000,
        description="single token to subtract (logit difference); empty: vocabulary-centred logit",
    )


PROMPT_ATTRIBUTION = Analysis(
    name="prompt-attribution",
    title="Logit attribution of one prompt",
    question="Which components write the prediction at each position of this prompt?",
    explanation=(
        "`DLA(c)`, `DE(c)` and their difference per component at every position, for the token "
        "that follows it (at the last position: the target). The waterfall of the last position "
        "adds all components and the bias terms to the vocabulary-centred logit, or to the logit "
        "difference; the sum is checked against the model. Logits are those before soft-capping "
        "and logit scale (Gemma 2, Cohere, Granite). DE recomputes the final norm alone: the scale "
        "of a norm after attention (Gemma 2 and 3, OLMo 2 and 3, GLM-4) stays frozen."
    ),
    parameters=PromptAttributionParameters,
    topic="attribution",
    runs_on="prompt",
    style="streaming",
    needs=frozenset({Need.COMPONENTS, Need.LOGITS}),
    tables=(
        TableSchema(
            "waterfall",
            "One row per component and position.",
            (
                Column("position", "int64", "", "position whose prediction is attributed"),
                Column("token", "str", "", "token at that position"),
                Column("target", "str", "", "token whose logit is attributed"),
                COMPONENT,
                LAYER,
                HEAD,
                Column(
                    "type", "str", "", "head, mlp, attn_bias, embedding, norm_bias or unembed_bias"
                ),
                measure("dla", "logits", "direct logit attribution"),
                measure("direct_effect", "logits", "exact direct effect; empty for bias terms"),
                measure("self_repair", "logits", "DE - DLA; empty for bias terms"),
            ),
        ),
        TableSchema(
            "positions",
            "One row per position.",
            (
                Column("position", "int64", "", "position"),
                Column("token", "str", "", "token at that position"),
                Column("target", "str", "", "token whose logit is attributed"),
                measure(
                    "logit", "logits", "the model's own raw logit (centred, or the difference)"
                ),
                measure("sum", "logits", "sum of all contributions"),
                measure("scale", "residual units", "scale of the final norm at that position"),
                measure("probability", "1", "the model's probability of the target"),
            ),
        ),
    ),
    figures=("prompt_attribution:waterfall", "prompt_attribution:by_position"),
    kernel="prompt_attribution:KERNEL",
    citations=(
        Citation(
            "Baroni et al. 2025, Transformers Don't Need LayerNorm at Inference Time", "2507.02559"
        ),
    ),
    version=2,
)
