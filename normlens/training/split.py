"""Which books are trained on and which are held out: data, in ``data/corpus.toml``."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from normlens.errors import BadText
from normlens.resources import data_path


class HeldOutBook(BaseModel):
    """A book that training never sees and that excerpts are taken from."""

    model_config = ConfigDict(frozen=True)
    author: str
    title: str


class Split(BaseModel):
    """Which books are held out (with excerpts), withheld (unused) or trained on (the rest)."""

    model_config = ConfigDict(frozen=True)
    name: str
    excerpt_bytes: int
    skip_fraction: float
    withheld: tuple[int, ...]
    held_out: dict[int, HeldOutBook]

    def training_books(self, books: Path) -> list[Path]:
        """Training files under ``books``, by Gutenberg id.

        Raises:
            BadText: the directory holds no ``<id>.txt`` file outside the held-out set.
        """
        apart = set(self.held_out) | set(self.withheld)
        numbered = [path for path in books.glob("*.txt") if path.stem.isdigit()]
        chosen = sorted(
            (p for p in numbered if int(p.stem) not in apart), key=lambda p: int(p.stem)
        )
        if not chosen:
            raise BadText(
                f"no training book <gutenberg id>.txt under {books}; point --books at the corpus"
            )
        return chosen


def load_split() -> Split:
    """The bundled split."""
    return Split.model_validate(tomllib.loads(data_path("corpus.toml").read_text(encoding="utf-8")))


def corpus_hash(paths: Sequence[Path]) -> str:
    """SHA-256 over the name and content hash of every file, in order.

    Raises:
        BadText: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise BadText(f"cannot read {path}: {error.strerror}; check its rights") from error
        digest.update(f"{path.name}:{content}\n".encode())
    return digest.hexdigest()
