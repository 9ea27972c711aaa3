"""Declaration of ``residual``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import GROUP, INTERVAL, N, measure
from normlens.catalog.declaration import Analysis, Citation, Need
from normlens.results import Column, TableSchema

POINT = Column("point", "int64", "", "i: before block i; the last one: after the last block")


@dataclass(frozen=True)
class ResidualParameters:
    """Parameters of ``residual``."""

    massive: int = Field(
        default=3,
        ge=1,
        le=100,
        description="largest coordinates of each token left out of the trimmed cosine",
    )


RESIDUAL = Analysis(
    name="residual",
    title="Growth of the residual stream",
    question="How does the residual stream grow and turn with depth, and how large is its start?",
    explanation=(
        "The residual `x_i` before block `i` and after the last, before the final norm. Its scale "
        "is a matter of convention in a model with live norms, not in a scale-free one, so compare "
        "ratios: *growth* is `exp(mean ln(|x_i| / |x_0|))`, the *first-token ratio* "
        "`exp(mean ln |x_first| - mean ln |x_rest|)`. Both are quotients of geometric means, which "
        "a few large tokens cannot own. The variance is over d_model, mean over tokens. Between a "
        "block's input and output: *angular distance* `arccos(cos)/pi` and *block influence* "
        "`1 - cos`, over all tokens of the group (published angular distances often take the last "
        "token alone). One coordinate can own a cosine: `cosine_centred` leaves out the mean over "
        "d_model, `cosine_trimmed` each token's largest coordinates."
    ),
    parameters=ResidualParameters,
    topic="depth",
    runs_on="corpus",
    style="streaming",
    needs=frozenset({Need.STEPS, Need.NORM_MOMENTS}),
    tables=(
        TableSchema(
            "points",
            "One row per point of the residual stream and token group.",
            (
                POINT,
                GROUP,
                N,
                measure("norm", "residual units", "mean L2 norm"),
                measure("q50", "residual units", "median L2 norm (log bins, error below 0.3 %)"),
                measure("typical", "residual units", "geometric mean of the L2 norm"),
                measure("variance", "residual units²", "mean variance over d_model"),
                measure("growth", "1", "typical norm over that before block 0"),
                measure("growth_low", "1", INTERVAL),
                measure("growth_high", "1", INTERVAL),
            ),
        ),
        TableSchema(
            "first_token",
            "The first token against the others, one row per point; n counts the others.",
            (
                POINT,
                N,
                measure("ratio", "1", "typical norm of first tokens over that of the others"),
                measure("ratio_low", "1", INTERVAL),
                measure("ratio_high", "1", INTERVAL),
                measure("q50_ratio", "1", "the same with medians (log bins, error below 0.5 %)"),
            ),
        ),
        TableSchema(
            "steps",
            "From a block's input to its output, one row per block and token group.",
            (
                Column("layer", "int64", "", "block index from 0"),
                GROUP,
                N,
                measure("cosine", "1", "mean cosine of input and output"),
                measure("cosine_centred", "1", "without the mean over d_model"),
                measure("cosine_trimmed", "1", "without each token's largest coordinates"),
                measure("influence", "1", "1 - cosine"),
                measure("influence_low", "1", INTERVAL),
                measure("influence_high", "1", INTERVAL),
                measure("angular_distance", "1", "mean of arccos(cosine) / pi"),
                measure("angular_distance_low", "1", INTERVAL),
                measure("angular_distance_high", "1", INTERVAL),
            ),
        ),
    ),
    figures=("residual:growth", "residual:first_token", "residual:turning"),
    kernel="residual:KERNEL",
    citations=(
        Citation(
            "Sun et al. 2025, The Curse of Depth in Large Language Models",
            "2502.05795",
            "sections 2-3",
        ),
        Citation("Men et al. 2024, ShortGPT", "2403.03853", "eq. 1"),
        Citation(
            "Gromov et al. 2024, The Unreasonable Ineffectiveness of the Deeper Layers",
            "2403.17887",
            "eq. 7",
        ),
        Citation("Sun et al. 2024, Massive Activations in Large Language Models", "2402.17762"),
    ),
)
