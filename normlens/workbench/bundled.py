"""The results that come with normlens, so that the explorer opens on real numbers.

They are those of every analysis on the bundled pair; of a prompt analysis, on its default
prompt. ``python -m normlens.workbench.bundled_make data/results`` makes them. No torch.
"""

from __future__ import annotations

from pathlib import Path

from normlens import catalog
from normlens.resources import data_path
from normlens.workbench.choices import CorpusChoice, ModelChoice
from normlens.workbench.stored import Found, StoredResults

PAIR = (ModelChoice("books-ln"), ModelChoice("books-lnfree"))
CORPUS = CorpusChoice()


def bundled_results() -> Path:
    """Where the results that come with normlens lie; the last root of every search."""
    return data_path("results")


def bundled_problems(root: Path) -> list[str]:
    """What the results below ``root`` lack for the models and analyses of today, one line each.

    A result lacks as soon as its analysis has another version, a bundled model other weights,
    or the bundled text other words.
    """
    return [
        f"{name} of {choice.name}: {reason}; make results"
        for name, found in find_bundled(root).items()
        for choice, reason in zip(found.missing, found.reasons, strict=True)
    ]


def find_bundled(root: Path) -> dict[str, Found]:
    """What is stored below ``root`` of every analysis on the bundled pair."""
    stored = StoredResults([root])
    return {
        analysis.name: stored.find(
            analysis.name, PAIR, CORPUS if analysis.runs_on == "corpus" else None
        )
        for analysis in catalog.ALL
    }
