"""Declaration of ``outlier-ablation``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import INTERVAL, LAYER, N, measure
from normlens.catalog.declaration import Analysis, Citation, Extent
from normlens.results import Column, TableSchema


@dataclass(frozen=True)
class OutlierAblationParameters:
    """Parameters of ``outlier-ablation``."""

    sequences: int = Field(
        default=32, ge=1, le=100_000, description="sequences, spread evenly over the corpus"
    )
    dimensions: int = Field(default=6, ge=1, le=256, description="most outlier dimensions to zero")
    criterion: Literal["relative", "absolute"] = Field(
        default="relative",
        description="outlier dimensions by |x| in RMS of the token, or by |x| as it stands",
    )
    random_seeds: int = Field(
        default=3, ge=1, le=100, description="draws of as many random dimensions"
    )
    threshold: float = Field(default=6.0, gt=0, le=1e6, description="as in outliers")
    layer_share: float = Field(default=0.25, gt=0, le=1, description="as in outliers")
    position_share: float = Field(default=0.06, gt=0, le=1, description="as in outliers")
    massive_threshold: float = Field(default=100.0, gt=0, le=1e9, description="as in outliers")
    massive_ratio: float = Field(default=1000.0, ge=1, le=1e9, description="as in outliers")
    sink_epsilon: float = Field(
        default=0.3, gt=0, lt=1, description="attention to the first token that makes a sink"
    )
    sink_tokens: int = Field(
        default=64, ge=2, le=100_000, description="queries a sink rate is averaged over"
    )


def _forwards(parameters: OutlierAblationParameters, extent: Extent) -> float:
    """To find, to average, intact; outliers and random dimensions in two places; zero, mean."""
    passes = 3 + 2 * (1 + parameters.random_seeds) + 2
    return float(min(parameters.sequences, extent.sequences) * passes)


_WHAT = Column("what", "str", "", "dimensions, massive, or intact for the model as it is")
_HOW = Column("how", "str", "", "where dimensions are set to 0, or what entries are set to")
_CHOSEN = Column("chosen", "str", "", "outlier, or as many at random")

OUTLIER_ABLATION = Analysis(
    name="outlier-ablation",
    title="What outlier dimensions and massive activations do",
    question="Does the model need its outlier dimensions and massive activations, and for what?",
    explanation=(
        "**Outlier dimensions** (those of `outliers`; the ones with the largest mean square where "
        "none meets the criterion) are set to 0 in the residual stream before every block and "
        "after the last, or at the output of every norm that attention or an MLP reads; next to "
        "it, as many random dimensions. **Massive activations** are set to 0, or to their mean "
        "over the corpus, at the depth where each dimension first has one, and nowhere else; in a "
        "model without any, the first token's largest entry relative to the median stands in, "
        "which `target` says. `delta_loss` is the paired change of cross-entropy. "
        "**Sinks**: `alpha = mean over the first T queries of the attention to the first token`; "
        "the sink rate is the share of heads with `alpha > epsilon`. "
        "**Chain**: at the input norm of every attention, `1/scale`, the variance of the norm's "
        "output over dimensions and the norm of the value vector, at the tokens that carry a spike "
        "and at all others. `drift` is the mean norm of the final residual over the intact one: "
        "a scale-free model has nothing that pulls it back, so an ablation that makes it drift "
        "measures more than the ablated dimension."
    ),
    parameters=OutlierAblationParameters,
    topic="outliers",
    runs_on="corpus",
    style="procedure",
    needs=frozenset(),
    tables=(
        TableSchema(
            "effects",
            "One row per ablation.",
            (
                _WHAT,
                _HOW,
                _CHOSEN,
                Column("seed", "Int64", "", "of the random draw; empty for the outliers"),
                Column("dimensions", "str", "", "indices in the residual stream"),
                Column("target", "str", "", "by what they were chosen, or where they are"),
                N,
                measure("loss", "nats/token", "mean cross-entropy under the ablation"),
                measure("delta_loss", "nats/token", "loss minus the intact model's"),
                measure("delta_low", "nats/token", "95 % paired bootstrap interval"),
                measure("delta_high", "nats/token", "95 % paired bootstrap interval"),
                measure("drift", "1", "mean norm of the final residual over the intact one"),
                measure("drift_first", "1", "the same for first tokens"),
            ),
        ),
        TableSchema(
            "sinks",
            "Sink rate of the intact model and under every ablation of the outliers.",
            (
                _WHAT,
                _HOW,
                Column("n", "int64", "sequences", "sequences of at least T tokens"),
                measure("sink_rate", "1", "share of heads whose first-token attention is a sink"),
                measure("sink_low", "1", INTERVAL),
                measure("sink_high", "1", INTERVAL),
                measure("first_token_mass", "1", "mean attention to the first token"),
            ),
        ),
        TableSchema(
            "chain",
            "From spike to norm to value, by layer, in the intact model.",
            (
                LAYER,
                Column("quantity", "str", "", "inverse_scale, output_variance or value_norm"),
                Column("tokens", "str", "", "spike, or rest: neither spike nor first token"),
                N,
                measure("value", "own units", "mean over tokens"),
            ),
        ),
    ),
    figures=("outlier_ablation:effects", "outlier_ablation:sinks", "outlier_ablation:chain"),
    kernel="outlier_ablation:KERNEL",
    forwards=_forwards,
    citations=(
        Citation("Dettmers et al. 2022, LLM.int8()", "2208.07339", "section 4"),
        Citation("Sun et al. 2024, Massive Activations in LLMs", "2402.17762", "section 4"),
        Citation("Gu et al. 2024, When Attention Sink Emerges", "2410.10781", "eq. 7"),
        Citation("Guo et al. 2024, Active-Dormant Attention Heads", "2410.13835"),
    ),
)
