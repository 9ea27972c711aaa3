"""Declaration of ``outliers``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import GROUP, INTERVAL, LAYER, N, measure
from normlens.catalog.declaration import Analysis, Citation, Need
from normlens.results import Column, TableSchema


@dataclass(frozen=True)
class OutliersParameters:
    """Parameters of ``outliers``."""

    threshold: float = Field(
        default=6.0,
        gt=0,
        le=1e6,
        description="an outlier feature reaches this: as it stands, and in RMS of its own token",
    )
    layer_share: float = Field(
        default=0.25, gt=0, le=1, description="share of layers an outlier dimension must count in"
    )
    position_share: float = Field(
        default=0.06,
        gt=0,
        le=1,
        description="share of tokens that must reach the threshold for a layer to count",
    )
    massive_threshold: float = Field(
        default=100.0,
        gt=0,
        le=1e9,
        description="a massive activation exceeds this (residual units)",
    )
    massive_ratio: float = Field(
        default=1000.0,
        ge=1,
        le=1e9,
        description="and is at least so many times the median magnitude of its layer and sequence",
    )
    top: int = Field(default=8, ge=1, le=256, description="dimensions to list")
    rotate: bool = Field(
        default=False, description="also in a random orthonormal basis (rotation control)"
    )
    rotate_seed: int = Field(default=0, ge=0, le=2**31 - 1, description="seed of that basis")


_POINT = Column(
    "point", "str", "", "residual.3: before block 3; norm.3.pre_attn: that norm's output"
)
_DEPTH = Column("depth", "int64", "blocks", "blocks before the point")
_DIMENSION = Column("dimension", "Int64", "", "index in the residual stream; empty where none is")
_BASIS = Column(
    "basis", "str", "", "native: as the model has it; gain_free: xhat; rotated: times a random Q"
)
_CRITERION = Column("criterion", "str", "", "absolute: |x| >= t; relative: |x| >= t * rms(token)")

OUTLIERS = Analysis(
    name="outliers",
    title="Outlier dimensions and massive activations",
    question="Which dimensions and tokens of the residual stream are far larger than the rest?",
    explanation=(
        "**Outlier dimensions** (LLM.int8): at the inputs of attention and of the MLP, which are "
        "the outputs of the norms before them, gain and bias included, a layer counts for a "
        "dimension when `|x| >= 6` in at least 6 % of the tokens at one of the layer's inputs; the "
        "dimension is an outlier when at least 25 % of the layers count. The paper asks for one "
        "value per layer and pools positions over all layers; here both shares are of the same "
        "layer, which is stricter. *Relative* asks for `|x| >= 6 rms(x)` with the token's own RMS: "
        "gauge-free, so the one to compare models by. "
        "**Massive activations**: `|a| > 100` and at least 1000 times the median magnitude of the "
        "residual stream of that sequence at that depth. The residual scale of a model with live "
        "pre-norms is arbitrary: the ratio says more than 100 does. "
        "**Kurtosis**, three of them: *per token*, the fourth standardised moment over "
        "dimensions, mean over tokens (Gaussian 3); *excess*, that minus 3; *per feature*, "
        "`E[s**2]/E[s]**2` over dimensions of `s_j = mean over tokens of x_j**2`, tokens centred "
        "over dimensions (1 where all dimensions are alike, at most d). "
        "**Rotation control**: folding gains and turning the residual basis by a random orthogonal "
        "`Q` changes no logit. The residual becomes `r Q` (centred where the norms centre) and a "
        "norm's output `xhat Q`, so both are measured from the activations at hand. What vanishes "
        "is an artefact of the basis; norms of tokens stay."
    ),
    parameters=OutliersParameters,
    topic="outliers",
    runs_on="corpus",
    style="streaming",
    needs=frozenset({Need.RESIDUAL, Need.NORM_OUTPUT}),
    tables=(
        TableSchema(
            "layers",
            "One row per point of the residual stream and token group.",
            (
                _POINT,
                _DEPTH,
                GROUP,
                N,
                measure("largest", "residual units", "the activation of largest magnitude"),
                _DIMENSION,
                Column("position", "Int64", "", "its position in its sequence"),
                Column("token", "str", "", "the token there"),
                measure(
                    "median",
                    "residual units",
                    "median magnitude of a sequence, all its tokens; mean over sequences",
                ),
                measure("ratio", "1", "largest magnitude over the median of its own sequence"),
                Column("massive", "int64", "activations", "number of massive activations"),
                measure("q50_norm", "residual units", "median L2 norm (log bins, error 0.3 %)"),
                measure("mean_norm", "residual units", "mean L2 norm"),
            ),
        ),
        TableSchema(
            "massive",
            "One row per point, token group and dimension with massive activations; one empty row "
            "for a token group without any.",
            (
                Column("point", "str", "", "residual.3: before block 3; empty where none is"),
                Column("depth", "Int64", "blocks", "blocks before the point"),
                GROUP,
                _DIMENSION,
                Column("n", "int64", "activations", "massive activations behind the row"),
                measure("largest", "residual units", "the one of largest magnitude"),
                measure("ratio", "1", "largest magnitude over the median of its own sequence"),
            ),
        ),
        TableSchema(
            "massive_positions",
            "Positions with the most massive activations, all depths and dimensions together; one "
            "empty row where there is none.",
            (
                Column("position", "Int64", "", "position in the sequence"),
                Column("n", "int64", "activations", "massive activations at the position"),
                measure("share", "1", "of all massive activations"),
            ),
        ),
        TableSchema(
            "kurtosis",
            "One row per point, basis and token group.",
            (
                _POINT,
                Column("order", "int64", "", "rank in order of execution"),
                _DEPTH,
                _BASIS,
                GROUP,
                N,
                measure("per_token", "1", "kurtosis over dimensions, mean over tokens"),
                measure("per_token_low", "1", INTERVAL),
                measure("per_token_high", "1", INTERVAL),
                measure("excess", "1", "per_token - 3"),
                measure("per_feature", "1", "E[s**2]/E[s]**2 over dimensions"),
            ),
        ),
        TableSchema(
            "dimensions",
            "The dimensions with the largest share of the residual stream, per token group.",
            (
                GROUP,
                _DIMENSION,
                N,
                measure("mean_square_share", "1", "share of the mean square, mean over depths"),
                measure("persistence_depths", "1", "share of depths where it is among the top"),
                measure(
                    "persistence_tokens",
                    "1",
                    "share of tokens whose largest it is, mean over depths",
                ),
                Column("massive", "int64", "activations", "its massive activations, all depths"),
            ),
        ),
        TableSchema(
            "profile",
            "Share of the listed dimensions by depth, first tokens apart.",
            (
                _POINT,
                _DEPTH,
                GROUP,
                _DIMENSION,
                N,
                measure("mean_square_share", "1", "share of the mean square"),
            ),
        ),
        TableSchema(
            "features",
            "Outlier dimensions by the criterion of LLM.int8 and the next ones, per basis.",
            (
                _BASIS,
                _CRITERION,
                GROUP,
                _DIMENSION,
                Column("outlier", "bool", "", "whether it meets the criterion"),
                N,
                measure("layer_share", "1", "share of layers that count"),
                measure("token_share", "1", "share of tokens that reach the threshold"),
            ),
        ),
        TableSchema(
            "feature_layers",
            "Share of tokens that reach the threshold, by layer input and listed dimension.",
            (
                _POINT,
                LAYER,
                Column("feeds", "str", "", "attention or mlp"),
                _CRITERION,
                _DIMENSION,
                N,
                measure("token_share", "1", "share of tokens but the first that reach it"),
            ),
        ),
    ),
    figures=(
        "outliers:magnitude",
        "outliers:kurtosis",
        "outliers:dimensions",
        "outliers:features",
        "outliers:first_token",
    ),
    kernel="outliers:KERNEL",
    citations=(
        Citation("Dettmers et al. 2022, LLM.int8()", "2208.07339", "section 4"),
        Citation("Sun et al. 2024, Massive Activations in LLMs", "2402.17762", "section 2"),
        Citation(
            "He et al. 2024, Understanding and Minimising Outlier Features", "2405.19279", "eq. 3"
        ),
        Citation("Elhage et al. 2023, Privileged Bases in the Transformer Residual Stream", ""),
        Citation("Ashkboos et al. 2024, QuaRot", "2404.00456", "section 4"),
    ),
)
