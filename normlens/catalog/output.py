"""Declaration of ``output``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import INTERVAL, N, measure
from normlens.catalog.declaration import Analysis, Citation, Need
from normlens.results import Column, TableSchema


@dataclass(frozen=True)
class OutputParameters:
    """Parameters of ``output``."""

    calibration_bins: int = Field(
        default=15, ge=2, le=100, description="equal-width confidence bins of the calibration error"
    )
    worst: int = Field(default=10, ge=1, le=1000, description="worst sequences to list")
    per_token: bool = Field(default=False, description="also return one row per token (large)")


OUTPUT = Analysis(
    name="output",
    title="Next-token predictions",
    question="How well does the model predict held-out text, and does it know how sure to be?",
    explanation=(
        "Cross-entropy `-ln p(next token)` and predictive entropy `-sum p ln p` in nats per token, "
        "over every position that has a next token; the prediction made at the first token is in "
        "`first`, all others in `rest`, both together in `all`. ECE is the expected calibration "
        "error of the top-1 probability, "
        "`sum_b (n_b/n) |accuracy_b - confidence_b|` over equal-width bins. Quantiles show what "
        "a mean hides: a few tokens the training text lacked can own it."
    ),
    parameters=OutputParameters,
    topic="output",
    runs_on="corpus",
    style="streaming",
    needs=frozenset({Need.LOGITS}),
    tables=(
        TableSchema(
            "summary",
            "One row per token group.",
            (
                Column("group", "str", "", "all, rest (predicted after the first token) or first"),
                N,
                measure("cross_entropy", "nats/token", "mean -ln p(next token)"),
                measure(
                    "cross_entropy_low",
                    "nats/token",
                    INTERVAL,
                ),
                measure(
                    "cross_entropy_high",
                    "nats/token",
                    INTERVAL,
                ),
                measure("perplexity", "1", "exp(cross_entropy)"),
                measure("entropy", "nats/token", "mean predictive entropy"),
                measure("ece", "1", "expected calibration error of the top-1 probability"),
                measure("top1", "1", "share of tokens predicted first"),
            ),
        ),
        TableSchema(
            "quantiles",
            "Quantiles of the per-token cross-entropy (group all).",
            (
                measure("quantile", "1", "quantile level"),
                measure("cross_entropy", "nats/token", "value (log bins, error below 0.3 %)"),
            ),
        ),
        TableSchema(
            "calibration",
            "Reliability of the top-1 probability by confidence bin (group all).",
            (
                measure("low", "1", "lower edge"),
                measure("high", "1", "upper edge"),
                N,
                measure("confidence", "1", "mean top-1 probability"),
                measure("accuracy", "1", "share predicted first"),
            ),
        ),
        TableSchema(
            "worst",
            "Sequences with the largest mean cross-entropy, worst first.",
            (
                Column("rank", "int64", "", "from 1"),
                Column("sequence", "int64", "", "sequence index in the corpus"),
                Column("document", "str", "", "document id"),
                N,
                measure("cross_entropy", "nats/token", "mean over the sequence"),
                Column("text", "str", "", "the sequence's text"),
            ),
        ),
        TableSchema(
            "tokens",
            "One row per token, on request.",
            (
                Column("sequence", "int64", "", "sequence index in the corpus"),
                Column("position", "int64", "", "position of the predicted token"),
                Column("token", "int64", "", "id of the predicted token"),
                measure("cross_entropy", "nats", "-ln p"),
                measure("entropy", "nats", "predictive entropy"),
            ),
        ),
    ),
    figures=("output:loss", "output:calibration", "output:quantiles"),
    kernel="output:KERNEL",
    citations=(
        Citation(
            "Guo et al. 2017, On Calibration of Modern Neural Networks", "1706.04599", "eq. 3"
        ),
        Citation(
            "Baroni et al. 2025, Transformers Don't Need LayerNorm at Inference Time", "2507.02559"
        ),
    ),
)
