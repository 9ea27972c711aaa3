"""Declaration of ``divergence``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import N, measure
from normlens.catalog.declaration import Analysis, Citation, Extent
from normlens.results import Column, TableSchema

PAIRED = "95 % paired bootstrap interval, documents resampled"


@dataclass(frozen=True)
class DivergenceParameters:
    """Parameters of ``divergence``."""

    worst: int = Field(
        default=20, ge=1, le=1000, description="worst tokens to list in every ranking"
    )
    context_tokens: int = Field(
        default=24, ge=1, le=512, description="tokens of context shown with a worst token"
    )


def _bounded(name: str, unit: str, doc: str) -> tuple[Column, Column, Column]:
    return (
        measure(name, unit, doc),
        measure(f"{name}_low", unit, PAIRED),
        measure(f"{name}_high", unit, PAIRED),
    )


JSD = measure("jsd", "nats", "Jensen-Shannon divergence, from 0 to ln 2 = 0.693")
KL_MODEL = measure("kl_model_reference", "nats", "KL(model || reference)")
KL_REFERENCE = measure("kl_reference_model", "nats", "KL(reference || model)")
LOSS = measure("loss", "nats/token", "cross-entropy of the model")
REFERENCE_LOSS = measure("reference_loss", "nats/token", "cross-entropy of the reference")
DELTA = measure("delta_loss", "nats/token", "loss minus the reference's")
MEANS = (
    N,
    *_bounded(JSD.name, JSD.unit, "mean " + JSD.doc),
    *_bounded(KL_MODEL.name, KL_MODEL.unit, "mean " + KL_MODEL.doc),
    *_bounded(KL_REFERENCE.name, KL_REFERENCE.unit, "mean " + KL_REFERENCE.doc),
    *_bounded("agreement", "1", "share of predictions with the same most probable token"),
    LOSS,
    REFERENCE_LOSS,
    *_bounded(DELTA.name, DELTA.unit, DELTA.doc),
)


def _forwards(parameters: DivergenceParameters, extent: Extent) -> int:
    """Both models once; the reference counts as if it were the model."""
    return 2 * extent.sequences


DIVERGENCE = Analysis(
    name="divergence",
    title="Divergence of predictions",
    question="Where do two models predict differently, and by how much?",
    explanation=(
        "For the next-token distributions `p` of the model and `q` of the reference on the same "
        "tokens: `JSD = (KL(p||m) + KL(q||m))/2` with `m = (p+q)/2`, in nats and at most "
        "`ln 2 = 0.693`; `KL(p||q) = sum p ln(p/q)` both ways, which has no bound and is owned by "
        "tokens one model all but rules out; the share of predictions with the same most probable "
        "token; and the loss difference. Equal losses do not mean equal predictions: `delta_loss` "
        "can be 0 while JSD is large. Classes are of the token that is predicted: its *kind* "
        "(from its text; a continuation follows a letter or digit without a space), its *context* "
        "(`induction`: the pair of tokens stands earlier in the sequence; `repeated`: the token "
        "alone does; `new`), its *frequency* in this corpus in fifths of equal mass. Positions "
        "are those that predict; the prediction made at the first token is in `first`."
    ),
    parameters=DivergenceParameters,
    topic="output",
    runs_on="corpus",
    style="procedure",
    needs=frozenset(),
    tables=(
        TableSchema(
            "summary",
            "One row per token group.",
            (
                Column("group", "str", "", "all, rest (predicted after the first token) or first"),
                *MEANS,
            ),
        ),
        TableSchema(
            "classes",
            "One row per class of the predicted token that occurs; the classes of a partition are "
            "disjoint. An interval without width: the class occurs in one document alone.",
            (
                Column("partition", "str", "", "kind, context or frequency"),
                Column("token_class", "str", "", "class of the predicted token"),
                *MEANS,
            ),
        ),
        TableSchema(
            "positions",
            "One row per range of predicting positions.",
            (
                Column("low", "int64", "", "first position of the range, from 0"),
                Column("high", "int64", "", "last position of the range"),
                *MEANS,
            ),
        ),
        TableSchema(
            "worst",
            "Tokens on which the models differ most, by three rankings, worst first; predictions "
            "made at first tokens are not ranked.",
            (
                Column("by", "str", "", "jsd, loss rise or loss fall"),
                Column("rank", "int64", "", "from 1"),
                Column("sequence", "int64", "", "sequence index in the corpus"),
                Column("document", "str", "", "document id"),
                Column("position", "int64", "", "position that predicts"),
                Column("context", "str", "", "the text up to that position"),
                Column("token", "str", "", "the token that comes next"),
                Column("top", "str", "", "the model's most probable token"),
                Column("reference_top", "str", "", "the reference's"),
                JSD,
                KL_MODEL,
                KL_REFERENCE,
                LOSS,
                REFERENCE_LOSS,
                DELTA,
            ),
        ),
    ),
    figures=(
        "divergence:summary",
        "divergence:by_class",
        "divergence:loss_by_class",
        "divergence:by_position",
    ),
    kernel="divergence:KERNEL",
    citations=(
        Citation(
            "Lin 1991, Divergence Measures Based on the Shannon Entropy",
            "doi:10.1109/18.61115",
            "eq. 4.1",
        ),
        Citation("Olsson et al. 2022, In-context Learning and Induction Heads", "2209.11895"),
        Citation(
            "Baroni et al. 2025, Transformers Don't Need LayerNorm at Inference Time", "2507.02559"
        ),
    ),
    compares=True,
    forwards=_forwards,
)
