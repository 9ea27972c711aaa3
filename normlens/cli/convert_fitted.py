"""The steps ``dyt`` and ``eln`` of ``normlens convert``: elementwise norms fitted on text.

Every fourth sequence of the text is kept from the fit; on a few of these the change of the
loss and the divergence are measured, each norm replaced alone and all at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import torch

from normlens import runner
from normlens.errors import UsageError
from normlens.kernels.curve_replacement import (
    FittedNorm,
    ReplaceFitted,
    fitted_specs,
    measure_replacement,
)
from normlens.models.edits import Edited, select_sites
from normlens.models.lens import Lens
from normlens.norms import NormKind
from normlens.text.sequences import Sequences

KINDS: Mapping[str, Literal[NormKind.DYT, NormKind.ELN]] = {
    "dyt": NormKind.DYT,
    "eln": NormKind.ELN,
}
"""The steps, by their name on the command line."""

APART = 4
"""One sequence in so many is kept from the fit."""
MEASURED = 16
"""Most sequences that the cost is measured on: every norm takes a pass of its own."""


@dataclass(frozen=True)
class FitCurves:
    """The edit of a step; see :mod:`normlens.kernels.curve_replacement`."""

    step: str
    sites: str
    sequences: Sequences

    @property
    def name(self) -> str:
        """``STEP=DIGEST@SITES``, with a digest of the text that it was fitted on."""
        return f"{self.step}={self.fitted_on.sha256[:12]}@{self.sites}"

    @property
    def fitted_on(self) -> Sequences:
        """The sequences of the fit."""
        rows = torch.arange(len(self.sequences))
        return self.sequences.select(rows[rows % APART != APART - 1])

    @property
    def held_out(self) -> Sequences:
        """The sequences that the cost is measured on."""
        rows = torch.arange(APART - 1, len(self.sequences), APART)
        return self.sequences.select(rows).spread(min(MEASURED, len(rows)))

    def norms(self, lens: Lens) -> dict[str, FittedNorm]:
        """The fits of a model's norms."""
        if len(self.sequences) < APART:
            raise UsageError(f"{self.step} needs at least {APART} sequences of text to fit on")
        (curves,) = runner.run(["curves"], lens, self.fitted_on)
        return fitted_specs(curves, lens, KINDS[self.step], select_sites(lens, self.sites))

    @property
    def tolerance(self) -> None:
        """None: the edit is not exact."""
        return None

    def __call__(self, lens: Lens) -> Edited:
        """The model with fitted norms, and what they cost in words."""
        norms = self.norms(lens)
        edited = ReplaceFitted(tuple(norms.values()))(lens)
        return Edited(edited.model, _notes(measure_replacement(lens, norms, self.held_out)))


def _notes(costs: pd.DataFrame) -> tuple[str, ...]:
    singly, together = costs.iloc[:-1], costs.iloc[-1]
    worst = singly.iloc[int(singly["kl"].argmax())]
    return (
        f"all {len(singly)} replaced: Δloss {together['delta_loss']:+.4g} nats/token "
        f"[{together['delta_low']:.4g}, {together['delta_high']:.4g}], KL {together['kl']:.4g}, "
        f"n = {together['n']:,} held-out targets",
        f"one alone: median KL {singly['kl'].median():.4g} nats/token, largest {worst['kl']:.4g} "
        f"at {worst['replaced']} (Δloss {worst['delta_loss']:+.4g})",
    )


def is_fitted(word: str) -> bool:
    """Whether a step is one of these."""
    return word.partition("@")[0] in KINDS


def fitted_edit(word: str, sites: str, sequences: Sequences) -> FitCurves:
    """The edit of ``dyt[@SITES]`` or ``eln[@SITES]``."""
    step, _, own = word.partition("@")
    return FitCurves(step, own or sites, sequences)
