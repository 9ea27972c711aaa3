"""Every tolerance of a numerical self-check, by dtype, each with its reason.

A check passes iff its value is at most the tolerance. Values are relative (dimensionless)
unless the row says otherwise. Torch-free: a dtype is named by a string.
"""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Tolerance:
    """The tolerance of one check in each dtype a model may be analysed in.

    Attributes:
        name: what :func:`for_dtype` looks up.
        float64: tolerance for float64, and so on for the other dtypes.
        reason: what the compared quantity is and why these values are enough.
    """

    name: str
    float64: float
    float32: float
    bfloat16: float
    float16: float
    reason: str


TOLERANCES = (
    Tolerance(
        name="site_residual",
        float64=1e-10,
        float32=2e-5,
        bfloat16=3e-2,
        float16=4e-3,
        reason=(
            "max|y - y_spec| / max|y| of one norm on a sample, y_spec in float64. A norm is a "
            "mean, a square root and two products, so a few units in the last place "
            "(1e-16, 6e-8, 4e-3, 5e-4); float32 leaves room for the cancellation in x - mean(x) "
            "where the mean is up to a hundred times the scale."
        ),
    ),
    Tolerance(
        name="conservation",
        float64=1e-10,
        float32=1e-5,
        bfloat16=5e-2,
        float16=5e-3,
        reason=(
            "|sum of components - logit| / max(1, sum |components|): a sum of up to a few "
            "thousand terms whose rounding errors are those of the forward pass that made them."
        ),
    ),
    Tolerance(
        name="conversion_logits",
        float64=1e-12,
        float32=1e-5,
        bfloat16=5e-2,
        float16=5e-3,
        reason=(
            "max|logits - logits_converted| / max|logits| after an exact rewriting of a norm: "
            "equal in exact arithmetic, so only the order of roundings differs."
        ),
    ),
    Tolerance(
        name="eps_format_logits",
        float64=1e-9,
        float32=1e-5,
        bfloat16=5e-2,
        float16=5e-3,
        reason=(
            "as conversion_logits, between a constant scale and the same stored as an eps of "
            "1e12: sqrt(var + 1e12) = 1e6 (1 + var / 2e12), a relative 5e-11 for a residual "
            "stream of variance 100, once per norm."
        ),
    ),
    Tolerance(
        name="component_view",
        float64=1e-6,
        float32=1e-5,
        bfloat16=5e-2,
        float16=5e-3,
        reason=(
            "max|log p - log p_view| / max(1, max|log p|) between a model and its component "
            "view, about 1e-4 nats in float32: equal bit for bit unless attention patterns are "
            "wanted; then attention is another kernel, whose roundings grow along the layers and "
            "whose softmax is in float32 even in float64 models."
        ),
    ),
    Tolerance(
        name="component_sum",
        float64=1e-12,
        float32=1e-5,
        bfloat16=5e-2,
        float16=5e-3,
        reason=(
            "|sum of components - residual| / max(1, sum |components|): the forward pass adds "
            "the same terms, head by head instead of in one product, rounding after each."
        ),
    ),
    Tolerance(
        name="live_freeze",
        float64=1e-12,
        float32=1e-5,
        bfloat16=5e-2,
        float16=5e-3,
        reason=(
            "max|logits - logits_frozen| / max|logits| when every live scale is replaced by its "
            "own value: the factor is 1 in exact arithmetic, so every norm's output is rounded "
            "once more and the roundings grow along the layers."
        ),
    ),
    Tolerance(
        name="patching",
        float64=1e-6,
        float32=1e-5,
        bfloat16=5e-2,
        float16=5e-3,
        reason=(
            "|d - d_expected| / max|logit| of a difference d of two logits when activations are "
            "replaced by those of a clean run everywhere, which must give the clean run, or "
            "nowhere, which must give the corrupted one: the same operations on several rows at "
            "once, whose sums are rounded in another order. Some models take the softmax or the "
            "norms in float32 even in float64."
        ),
    ),
    Tolerance(
        name="entropy_bounds",
        float64=1e-10,
        float32=1e-4,
        bfloat16=1e-4,
        float16=1e-4,
        reason=(
            "how far an entropy lies outside [0, ln vocabulary], in nats, absolute. It is "
            "computed from logits upcast to float32, whose rounding is that of a sum over the "
            "vocabulary of terms of at most a few nats, whatever dtype made the logits."
        ),
    ),
    Tolerance(
        name="divergence",
        float64=1e-12,
        float32=1e-5,
        bfloat16=1e-5,
        float16=1e-5,
        reason=(
            "how far a divergence in nats, absolute, is from where it must lie: in [0, ln 2], "
            "the same with the models exchanged, 0 for a model and itself. It is computed from "
            "logits upcast to float32, as a sum over the vocabulary of products of probabilities "
            "and log-ratios, whose roundings are those of logits of a few tens."
        ),
    ),
    Tolerance(
        name="gradient_step",
        float64=1e-3,
        float32=2e-2,
        bfloat16=0.9,
        float16=0.5,
        reason=(
            "|measured - predicted| / |predicted| change of a loss along its gradient, central "
            "difference with a small step: the third-order term of the loss and, in float32, the "
            "rounding of the two losses. In half precision the losses are rounded to about the "
            "size of the change, so little more than its sign is checked."
        ),
    ),
    Tolerance(
        name="attention_entropy_bounds",
        float64=1e-10,
        float32=1e-4,
        bfloat16=1e-4,
        float16=1e-4,
        reason=(
            "how far an entropy lies outside [0, ln n] for n visible keys, in nats, absolute. "
            "Logits and probabilities are at least float32 whatever the model's dtype; the "
            "probabilities of n keys sum to 1 within a few units in the last place."
        ),
    ),
    Tolerance(
        name="attention_recomputed",
        float64=1e-6,
        float32=1e-4,
        bfloat16=2e-2,
        float16=2e-3,
        reason=(
            "max|p v - output| / max|v| of one query, p recomputed in float32 at least. A logit "
            "z is rounded by 6e-8 |z|, which is the relative error of its probability: 1e-5 at "
            "logits of 150. The output is rounded to the model's dtype (6e-8, 4e-3, 5e-4), and "
            "some models take the softmax in float32 even in float64. A wrong mask, scale or "
            "head is off by 1e-2 and more."
        ),
    ),
    Tolerance(
        name="sum_of_squares",
        float64=1e-12,
        float32=2e-5,
        bfloat16=2e-5,
        float16=2e-5,
        reason=(
            "relative difference between one sum of squares made in two orders or in two "
            "orthonormal bases, from activations upcast to float32 or wider whatever dtype made "
            "them: positive terms, so only roundings of the sums remain."
        ),
    ),
)


def for_dtype(name: str, dtype: str) -> float:
    """The tolerance of check ``name`` for a model in ``dtype``.

    Args:
        name: the ``name`` of a row of :data:`TOLERANCES`.
        dtype: one of :data:`DTYPES`.

    Raises:
        ValueError: there is no such check or no tolerance for that dtype.
    """
    by_dtype = {row.name: row for row in TOLERANCES}
    if name not in by_dtype:
        raise ValueError(f"no tolerance is declared for {name!r}; known: {', '.join(by_dtype)}")
    row = by_dtype[name]
    values = {
        "float64": row.float64,
        "float32": row.float32,
        "bfloat16": row.bfloat16,
        "float16": row.float16,
    }
    if dtype not in values:
        raise ValueError(f"no tolerance for dtype {dtype!r}; known: {', '.join(DTYPES)}")
    return values[dtype]
