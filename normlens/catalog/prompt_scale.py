"""Declaration of ``prompt-scale``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import HEAD, SITE_COLUMNS, measure
from normlens.catalog.declaration import Analysis, Citation, Need
from normlens.results import Column, TableSchema


@dataclass(frozen=True)
class PromptScaleParameters:
    """Parameters of ``prompt-scale``."""

    prompt: str = Field(
        default="Alice took the key and opened the door, and then she",
        min_length=1,
        max_length=100_000,
        description="text to analyse",
    )


_POSITION = Column("position", "int32", "", "position in the prompt")
_TOKEN = Column("token", "str", "", "token there")

PROMPT_SCALE = Analysis(
    name="prompt-scale",
    title="Scales of one prompt",
    question="By what does each norm divide each token of this prompt, and where is it large?",
    explanation=(
        "The scale is the norm's denominator at that token, as in `scale`: `sqrt(var(x) + eps)` "
        "for LayerNorm, `sqrt(mean(x**2) + eps)` for RMSNorm. Where a site is scale-free it is the "
        "would-be scale of its input, `sqrt(var(x))`, and `applied` is false: the model divides by "
        "the constant in `applied_scale` instead, so that a token with a larger scale keeps its "
        "size there. `input_norm` is the L2 norm of what the norm reads, and `residual` has that "
        "of the residual stream before every block and after the last. A norm on queries or keys "
        "that sees each head by itself has one row per head. The first token is often larger by "
        "far: it has a panel of its own, and colours span the other tokens. Elementwise and opaque "
        "norms have an input but no scale."
    ),
    parameters=PromptScaleParameters,
    runs_on="prompt",
    style="streaming",
    needs=frozenset({Need.NORM_MOMENTS, Need.RESIDUAL}),
    tables=(
        TableSchema(
            "scale",
            "One row per site and token.",
            (
                *SITE_COLUMNS,
                HEAD,
                _POSITION,
                _TOKEN,
                Column("applied", "bool", "", "whether the model divides by this scale"),
                measure("scale", "residual units", "the token's scale"),
                measure("input_norm", "residual units", "L2 norm of the norm's input"),
                measure(
                    "applied_scale", "residual units", "the constant a scale-free site divides by"
                ),
            ),
        ),
        TableSchema(
            "residual",
            "One row per point of the residual stream and token.",
            (
                Column("point", "int32", "", "before that block; the last: after the last block"),
                _POSITION,
                _TOKEN,
                measure("norm", "residual units", "L2 norm of the residual stream"),
            ),
        ),
    ),
    figures=("prompt_scale:by_site", "prompt_scale:relative", "prompt_scale:residual"),
    kernel="prompt_scale:KERNEL",
    topic="norms",
    citations=(
        Citation("Ba et al. 2016, Layer Normalization", "1607.06450", "eq. 3-4"),
        Citation("Zhang & Sennrich 2019, RMSNorm", "1910.07467", "eq. 4"),
        Citation("Sun et al. 2024, Massive Activations in LLMs", "2402.17762", "section 2"),
    ),
)
