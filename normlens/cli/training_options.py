"""What is trained on, as the command line says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from normlens.errors import UsageError

if TYPE_CHECKING:
    from normlens.training.text import TrainingText

Flag = Parameter(negative=())
Files = Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative=())]


@Parameter(name="*")
@dataclass(frozen=True)
class TextChoice:
    """What is trained on and evaluated on."""

    books: Path | None = None
    """Directory of books named by Gutenberg id (16.txt); the held-out ones are left out."""
    text: Files = ()
    """Instead of books: .txt files (one document each), .jsonl files or directories."""
    held_out: Path | None = None
    """Text to evaluate on; by default the bundled held-out excerpts."""


@Parameter(name="*")
@dataclass(frozen=True)
class TrainingOptions(TextChoice):
    """What is trained on, where, and whether it is only estimated."""

    device: str = "cpu"
    """Torch device: cpu, cuda, cuda:1, mps."""
    threads: int | None = None
    """CPU threads; another number rounds differently."""
    dry_run: Annotated[bool, Flag] = False
    """Print tokens, steps, memory, time and schedule instead; nothing is written."""


def training_text(choice: TextChoice) -> TrainingText:
    """The text that was chosen.

    Raises:
        UsageError: none, or both books and texts.
        BadText: a file or directory is missing or holds no text.
    """
    from normlens.training.text import books, texts

    if choice.books is not None and not choice.text:
        return books(choice.books)
    if choice.text and choice.books is None:
        return texts(choice.text)
    raise UsageError("give exactly one of --books DIRECTORY and --text FILE...")
