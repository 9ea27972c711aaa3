"""What ``outlier-ablation`` runs: targets and ablations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from normlens.capture.protocol import Context
from normlens.kernels.outlier_interventions import Variant
from normlens.kernels.outlier_targets import Targets
from normlens.models.lens import Lens
from normlens.text.sequences import Batch


@dataclass(frozen=True)
class Plan:
    """What is run: targets and ablations.

    ``constant`` says that every entry has one value wherever it is found.
    """

    context: Context
    targets: Targets
    variants: tuple[Variant, ...]
    constant: bool = False

    @property
    def lens(self) -> Lens:
        """The model."""
        return self.context.lens

    @property
    def parameters(self) -> Any:
        """Of the analysis."""
        return self.context.parameters

    def long_enough(self, batch: Batch) -> Bool[Tensor, " batch"]:
        """Sequences with enough tokens for a sink rate."""
        return batch.mask.sum(-1) >= self.parameters.sink_tokens

    def words(self, variant: Variant) -> str:
        """By what the targets of an ablation were chosen."""
        if variant.what == "massive":
            return self.targets.entries_words
        return self.targets.dimensions_words if variant.chosen == "outlier" else "random"

    def dimensions(self, variant: Variant) -> tuple[int, ...]:
        """The dimensions an ablation touches."""
        entries = tuple(dict.fromkeys(entry.dimension for entry in self.targets.entries))
        return variant.dimensions or entries
