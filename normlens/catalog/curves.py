"""Declaration of ``curves``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import GROUP, INTERVAL, SITE_COLUMNS, measure
from normlens.catalog.declaration import Analysis, Citation, Need
from normlens.results import Column, TableSchema

ELEMENTS = Column("n", "int64", "elements", "number of elements behind the row")
UNIT, INVERSE = "input units", "1/input units"


@dataclass(frozen=True)
class CurvesParameters:
    """Parameters of ``curves``."""

    deviation: float = Field(
        default=0.1,
        ge=0.01,
        le=0.9,
        description="share of the straight line by which the curve may leave it",
    )


CURVES = Analysis(
    name="curves",
    title="Input-output curve of every norm",
    question="Which function of a single element does each norm look like: a line or an S?",
    explanation=(
        "The input `x` of every norm against its output before gain and bias, `xhat`, all "
        "elements of all tokens; first tokens apart. One token alone is a straight line of slope "
        "`1 / scale`; tokens with large elements have a large scale and a flat line, which bends "
        "the whole into an S. Least-squares fits: `s tanh(alpha x)` (DyT), `s x / sqrt(beta + "
        "x**2)` (ELN, DyISRU) and a straight line with intercept. R² is dominated by the many "
        "small elements, so `tails` gives each fit's RMS error by quantile range of `|x|`, beside "
        "the error that no function of `x` alone can avoid (`floor`). *Bend* is the mean of "
        "`xhat sign(x)` over what the slope of the smaller half of the elements predicts: 1 goes "
        "on straight, below 1 flattens. A fit whose `straight` flag is set found no bend: only "
        "its slope means something, not `alpha`, `beta` or `s` alone."
    ),
    parameters=CurvesParameters,
    topic="norms",
    runs_on="corpus",
    style="streaming",
    needs=frozenset({Need.NORM_INPUT}),
    tables=(
        TableSchema(
            "fits",
            "One row per site and token group.",
            (
                *SITE_COLUMNS,
                GROUP,
                ELEMENTS,
                measure("rms", UNIT, "root mean square of x"),
                measure("slope", INVERSE, "least squares through 0, smaller half of |x|"),
                measure("curve_r2", "1", "R² of the curve itself, the best function of x"),
                measure("line_r2", "1", "R² of the straight line"),
                measure("line_slope", INVERSE, "its slope"),
                measure("line_intercept", "1", "its intercept"),
                measure("tanh_r2", "1", "R² of s tanh(alpha x)"),
                measure("tanh_s", "1", "s, where it saturates"),
                measure("tanh_alpha", INVERSE, "alpha"),
                Column("tanh_straight", "bool", "", "no bend found: only s alpha is determined"),
                measure("eln_r2", "1", "R² of s x / sqrt(beta + x²)"),
                measure("eln_s", "1", "s, where it saturates"),
                measure("eln_beta", "input units²", "beta"),
                Column("eln_straight", "bool", "", "no bend: only s / sqrt(beta) is determined"),
                measure("straight_to", UNIT, "|x| up to which the curve is straight"),
                measure("straight_share", "1", "share of the elements up to there"),
            ),
        ),
        TableSchema(
            "tails",
            "One row per site, token group and quantile range of |x|; errors are RMS of xhat.",
            (
                *SITE_COLUMNS,
                GROUP,
                Column("range", "str", "", "quantile range of |x|"),
                ELEMENTS,
                measure("from_x", UNIT, "smallest |x|, to the edge of a bin 7-13 % wide"),
                measure("to_x", UNIT, "largest |x|, likewise"),
                measure("rms_xhat", "1", "root mean square of xhat"),
                measure("bend", "1", "mean of xhat sign(x) over slope times mean |x|"),
                measure("tanh_error", "1", "RMS error of s tanh(alpha x)"),
                measure("eln_error", "1", "RMS error of s x / sqrt(beta + x²)"),
                measure("line_error", "1", "RMS error of the straight line"),
                measure("floor", "1", "RMS error that no function of x avoids"),
            ),
        ),
        TableSchema(
            "curves",
            "The curve, one row per site, token group and bin of x that has elements.",
            (
                *SITE_COLUMNS,
                GROUP,
                ELEMENTS,
                measure("x", UNIT, "mean x"),
                measure("xhat", "1", "mean xhat"),
                measure("sd", "1", "standard deviation of xhat"),
            ),
        ),
        TableSchema(
            "slopes",
            "Slope of each token, 1 / scale; one row per site and token group.",
            (
                *SITE_COLUMNS,
                GROUP,
                Column("n", "int64", "tokens", "number of tokens, times heads where it sees them"),
                measure("mean", INVERSE, "mean"),
                measure("spread", "1", "sd / mean"),
                measure("spread_low", "1", INTERVAL),
                measure("spread_high", "1", INTERVAL),
                measure("q05", INVERSE, "5 % quantile (log bins, error below 0.3 %)"),
                measure("q50", INVERSE, "median (log bins, error below 0.3 %)"),
                measure("q95", INVERSE, "95 % quantile (log bins, error below 0.3 %)"),
            ),
        ),
    ),
    figures=(
        "curves:shapes",
        "curves:fits",
        "curves_depth:bend",
        "curves_depth:unexplained",
        "curves_depth:tail_errors",
    ),
    kernel="curves:KERNEL",
    citations=(
        Citation(
            "Zhu et al. 2025, Transformers without Normalization", "2503.10622", "section 3, eq. 1"
        ),
        Citation(
            "Stollenwerk 2025, The Mathematical Relationship Between Layer Normalization and "
            "Dynamic Activation Functions",
            "2503.21708",
        ),
    ),
)
