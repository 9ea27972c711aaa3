"""Declaration of ``scale``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import GROUP, HEAD, INTERVAL, SITE, SITE_COLUMNS, N, measure
from normlens.catalog.declaration import Analysis, Citation, Need
from normlens.results import Column, TableSchema


@dataclass(frozen=True)
class ScaleParameters:
    """Parameters of ``scale``."""

    per_token: bool = Field(
        default=False, description="also return one row per token and site (large)"
    )


SCALE = Analysis(
    name="scale",
    title="Scale of every norm",
    question="By what does each norm divide its tokens, and how much does that vary?",
    explanation=(
        "The scale is the norm's denominator, `sqrt(var(x) + eps)` for LayerNorm, "
        "`sqrt(mean(x**2) + eps)` for RMSNorm, an L2 or L1 norm for the kinds that divide by one: "
        "one number per token and site. Elementwise kinds have none. Its spread is the "
        "coefficient of variation `sd/mean` over tokens. The first token of every sequence is "
        "apart, padding never counts. A norm on queries or keys that sees each head by itself has "
        "one scale per head and token, and each counts. At scale-free sites the table gives the "
        "would-be scale `sqrt(var(x))`, marked not applied. The share along ones, "
        "`mean(x)**2 / mean(x**2)`, is what centring removes. The spread describes data; whether a "
        "norm can be removed is measured by freeze-sweep."
    ),
    parameters=ScaleParameters,
    topic="norms",
    runs_on="corpus",
    style="streaming",
    needs=frozenset({Need.NORM_MOMENTS}),
    tables=(
        TableSchema(
            "scale",
            "One row per site and token group.",
            (
                *SITE_COLUMNS,
                GROUP,
                Column("applied", "bool", "", "whether the model divides by this scale"),
                N,
                measure("mean", "residual units", "mean scale over tokens"),
                measure("sd", "residual units", "standard deviation over tokens"),
                measure("spread", "1", "sd / mean"),
                measure("spread_low", "1", INTERVAL),
                measure("spread_high", "1", INTERVAL),
                measure("q05", "residual units", "5 % quantile (log bins, error below 0.3 %)"),
                measure("q50", "residual units", "median (log bins, error below 0.3 %)"),
                measure("q95", "residual units", "95 % quantile (log bins, error below 0.3 %)"),
                measure("minimum", "residual units", "smallest"),
                measure("maximum", "residual units", "largest"),
                measure("ones_share", "1", "mean share of the input along the ones direction"),
                measure(
                    "applied_scale",
                    "residual units",
                    "the constant a scale-free site divides by (mean over positions)",
                ),
            ),
        ),
        TableSchema(
            "tokens",
            "One row per token and site, on request.",
            (
                Column("sequence", "int64", "", "sequence index in the corpus"),
                Column("position", "int64", "", "position in the sequence"),
                SITE,
                HEAD,
                measure("scale", "residual units", "the token's scale"),
            ),
        ),
    ),
    figures=("scale:by_site", "scale:spread_by_site", "scale:first_token"),
    kernel="scale:KERNEL",
    citations=(
        Citation("Ba et al. 2016, Layer Normalization", "1607.06450", "eq. 3-4"),
        Citation("Zhang & Sennrich 2019, RMSNorm", "1910.07467", "eq. 4"),
        Citation(
            "Baroni et al. 2025, Transformers Don't Need LayerNorm at Inference Time", "2507.02559"
        ),
    ),
)
