"""What is trained on: files, in order, with a digest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from normlens.errors import BadText
from normlens.text.documents import read_documents
from normlens.training.split import corpus_hash, load_split

SUFFIXES = (".txt", ".jsonl")


@dataclass(frozen=True)
class TrainingText:
    """Files to train on.

    Attributes:
        paths: in the order they are read.
        sha256: :func:`~normlens.training.split.corpus_hash` of the files.
        option: how the command line names them, for the command on a model's card.
    """

    paths: tuple[Path, ...]
    sha256: str
    option: str

    def documents(self) -> Iterator[str]:
        """The texts, one at a time: a ``.txt`` file is one, a ``.jsonl`` file one a line.

        Raises:
            BadText: a file is empty, not UTF-8, or malformed.
        """
        for path in self.paths:
            for document in read_documents(str(path)).items:
                yield document.text


def books(directory: Path) -> TrainingText:
    """The training books under ``directory``: all but the held-out and withheld ones.

    Raises:
        BadText: no training book there.
    """
    paths = load_split().training_books(directory)
    return TrainingText(tuple(paths), corpus_hash(paths), "--books BOOKS")


def texts(paths: Sequence[Path]) -> TrainingText:
    """``.txt`` and ``.jsonl`` files, and those in directories, in the given order.

    Raises:
        BadText: a path does not exist or is of another kind, or a directory has no text.
    """
    files = [file for path in paths for file in _files(path)]
    return TrainingText(tuple(files), corpus_hash(files), "--text FILES")


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not found:
            raise BadText(f"{path} holds no .txt or .jsonl file; give another --text")
        return found
    if not path.is_file():
        raise BadText(f"no text {path}; give a .txt file, a .jsonl file or a directory")
    if path.suffix not in SUFFIXES:
        raise BadText(f"{path} is neither .txt nor .jsonl; rename or convert it")
    return [path]
