"""Declaration of ``freeze-sweep``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import SITE_COLUMNS, N, measure
from normlens.catalog.declaration import Analysis, Citation, Extent
from normlens.results import Column, TableSchema


@dataclass(frozen=True)
class FreezeSweepParameters:
    """Parameters of ``freeze-sweep``."""

    sequences: int = Field(
        default=32, ge=1, le=100_000, description="sequences, spread evenly over the corpus"
    )


def _forwards(parameters: FreezeSweepParameters, extent: Extent) -> int:
    """Means, intact, every site alone, and all but the first once more."""
    if not extent.live_sites:
        return 0
    return min(parameters.sequences, extent.sequences) * (2 * extent.live_sites + 1)


FREEZE_SWEEP = Analysis(
    name="freeze-sweep",
    title="What each live scale is worth",
    question="What happens to the loss when a norm's scale is fixed to its mean?",
    explanation=(
        "Every site with a live scale is fixed to its mean over the corpus (the first token of a "
        "sequence to the mean over first tokens), one at a time and cumulatively in removal order "
        "(MLP norms by layer, attention norms by layer, the final norm). `delta_loss` is the "
        "change of the mean cross-entropy and `kl` the mean `KL(intact || frozen)`, both on the "
        "same tokens, "
        "in nats per token. This measures removability without fine-tuning; a small spread of the "
        "scale does not."
    ),
    parameters=FreezeSweepParameters,
    topic="norms",
    runs_on="corpus",
    style="procedure",
    needs=frozenset(),
    tables=(
        TableSchema(
            "sweep",
            "One row per site and mode.",
            (
                *SITE_COLUMNS,
                Column(
                    "mode", "str", "", "single: this site alone; cumulative: this and all before it"
                ),
                Column("step", "int64", "", "rank in removal order, from 1"),
                N,
                measure("loss", "nats/token", "mean cross-entropy with the scale fixed"),
                measure("delta_loss", "nats/token", "loss minus the intact model's"),
                measure(
                    "delta_low", "nats/token", "95 % paired bootstrap interval, documents resampled"
                ),
                measure(
                    "delta_high",
                    "nats/token",
                    "95 % paired bootstrap interval, documents resampled",
                ),
                measure("kl", "nats/token", "mean KL(intact || frozen)"),
                measure("frozen_scale", "residual units", "the mean the scale was fixed to"),
                measure("frozen_scale_first", "residual units", "the same for first tokens"),
            ),
        ),
    ),
    figures=("freeze_sweep:single", "freeze_sweep:cumulative"),
    kernel="freeze_sweep:KERNEL",
    forwards=_forwards,
    citations=(
        Citation("Heimersheim 2024, You can remove GPT2's LayerNorm by fine-tuning", "2409.13710"),
        Citation(
            "Baroni et al. 2025, Transformers Don't Need LayerNorm at Inference Time", "2507.02559"
        ),
    ),
)
