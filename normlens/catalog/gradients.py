"""Declaration of ``gradients``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import INTERVAL, SITE_COLUMNS, N, measure
from normlens.catalog.declaration import Analysis, Citation, Extent
from normlens.catalog.residual import POINT
from normlens.results import Column, TableSchema

GROUP = Column("group", "str", "", "first: first token of each sequence; rest: others that predict")


@dataclass(frozen=True)
class GradientsParameters:
    """Parameters of ``gradients``."""

    sequences: int = Field(
        default=16, ge=1, le=10_000, description="sequences, spread evenly over the corpus"
    )
    weights: bool = Field(
        default=True, description="also the gradients of every block's parameters"
    )


def _forwards(parameters: GradientsParameters, extent: Extent) -> int:
    """One forward pass, and a backward pass that costs two."""
    return 3 * min(parameters.sequences, extent.sequences)


GRADIENTS = Analysis(
    name="gradients",
    title="Gradients by depth",
    question="How large are gradients at every depth, and what does each norm do to them?",
    explanation=(
        "With `L` the summed next-token loss of a sequence, nats: the norm of `dL/dx` at every "
        "token of the residual stream before each block and after the last, mean over tokens that "
        "predict, the first token apart. The residual's scale is a convention in a model with "
        "live norms, and the gradient's the inverse of it: `sensitivity = |x| |dL/dx|` is free of "
        "it (the largest first-order change of the loss per relative change of x). A norm passes "
        "`J^T g` of a gradient `g`: its *attenuation* is `|J^T g| / |g|`, about gain over scale, "
        "so a massive first token gets nearly none. Parameter gradients are those of one "
        "sequence's mean loss, Frobenius norm by block and part, mean over sequences; that "
        "includes the noise of a single sequence."
    ),
    parameters=GradientsParameters,
    topic="depth",
    runs_on="corpus",
    style="procedure",
    needs=frozenset(),
    tables=(
        TableSchema(
            "points",
            "One row per point of the residual stream and token group.",
            (
                POINT,
                GROUP,
                N,
                measure("gradient", "nats per residual unit", "mean |dL/dx| over tokens"),
                measure("gradient_low", "nats per residual unit", INTERVAL),
                measure("gradient_high", "nats per residual unit", INTERVAL),
                measure("relative", "1", "gradient over that after the last block"),
                measure("sensitivity", "nats", "mean |x| |dL/dx| over tokens"),
                measure("sensitivity_low", "nats", INTERVAL),
                measure("sensitivity_high", "nats", INTERVAL),
            ),
        ),
        TableSchema(
            "norms",
            "One row per norm on the residual stream and token group.",
            (
                *SITE_COLUMNS,
                GROUP,
                N,
                measure("attenuation", "1 per residual unit", "mean |J^T g| / |g| over tokens"),
                measure("attenuation_low", "1 per residual unit", INTERVAL),
                measure("attenuation_high", "1 per residual unit", INTERVAL),
            ),
        ),
        TableSchema(
            "parameters",
            "One row per block and part, unless switched off; n counts predicted tokens.",
            (
                Column("layer", "int64", "", "block index from 0"),
                Column("part", "str", "", "norms (gains and biases), attention or mlp"),
                N,
                measure("gradient", "nats/token per unit", "Frobenius norm, mean over sequences"),
                measure("gradient_low", "nats/token per unit", INTERVAL),
                measure("gradient_high", "nats/token per unit", INTERVAL),
                measure("sensitivity", "nats/token", "that times the parameters' Frobenius norm"),
                measure("sensitivity_low", "nats/token", INTERVAL),
                measure("sensitivity_high", "nats/token", INTERVAL),
            ),
        ),
    ),
    figures=("gradients:by_depth", "gradients:attenuation", "gradients:parameters"),
    kernel="gradients:KERNEL",
    citations=(
        Citation(
            "Sun et al. 2025, The Curse of Depth in Large Language Models",
            "2502.05795",
            "section 3",
        ),
        Citation(
            "Xiong et al. 2020, On Layer Normalization in the Transformer Architecture",
            "2002.04745",
            "section 3",
        ),
    ),
    forwards=_forwards,
)
