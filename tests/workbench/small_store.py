"""Tiny models, a text, and a store in which analyses of them were run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from normlens.models.export import write_model
from normlens.models.recorded import open_recorded
from normlens.records import Records
from normlens.results import Result
from normlens.side_by_side import compare
from normlens.text import read_documents
from normlens.workbench.choices import CorpusChoice, ModelChoice
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tokenizer

TEXT = "Alice took the key and opened the door. The ship sailed at dawn, and nobody saw it go. "
CONTEXT = 32


def write_models(root: Path) -> None:
    """``ln`` and ``lnfree``, each in a directory below ``root``."""
    write_model(tiny_gpt2(1), tokenizer(), root / "ln")
    write_model(tiny_fixed_scale(2), tokenizer(), root / "lnfree")


def train_again(model: Path, seed: int) -> None:
    """Other weights in the same directory: files of the same names and sizes."""
    for file in model.iterdir():
        file.unlink()
    model.rmdir()
    write_model(tiny_gpt2(seed), tokenizer(), model)


def write_text(path: Path, repeats: int = 12) -> Path:
    """A text of some sequences."""
    path.write_text("\n".join(f"{i}. {TEXT}" for i in range(repeats)), encoding="utf-8")
    return path


def corpus_of(text: Path, sequences: int = 6) -> CorpusChoice:
    """How the tests read a text."""
    return CorpusChoice(str(text), sequences=sequences, context=CONTEXT)


def fill(
    store: Path,
    models: Sequence[ModelChoice],
    names: Sequence[str],
    corpus: CorpusChoice,
    *,
    batch_size: int = 16,
) -> list[Result]:
    """Run analyses the way the command line does."""
    records = Records(store)
    return compare(
        {
            choice.name: partial(
                open_recorded, choice.source, records, dtype=choice.dtype, convert=choice.convert
            )
            for choice in models
        },
        read_documents(corpus.text),
        names,
        sequences=corpus.sequences or None,
        context=corpus.context,
        bos=corpus.bos,
        batch_size=batch_size,
        store=store,
    )
