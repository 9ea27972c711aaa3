"""The books corpus: its split, its held-out excerpts, its tokenizer.

The split is data (``data/corpus.toml``). Excerpts and tokenizer are functions of the
books and the split alone, so they can be made again to the byte.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from normlens.atomic import atomic_directory, atomic_file
from normlens.errors import BadText
from normlens.resources import data_path
from normlens.text.documents import read_documents
from normlens.training.recipe import Architecture

BOS = "<|bos|>"
HELD_OUT = "books-held-out.jsonl"


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


def excerpt(text: str, skip_fraction: float, max_bytes: int) -> str:
    """Whole paragraphs (lines) after the first ``skip_fraction``, up to ``max_bytes`` of UTF-8."""
    lines = text.splitlines(keepends=True)
    taken: list[str] = []
    skipped, size = 0, 0
    to_skip = int(skip_fraction * len(text))
    for line in lines:
        if skipped < to_skip:
            skipped += len(line)
            continue
        size += len(line.encode())
        if size > max_bytes:
            break
        taken.append(line)
    return "".join(taken)


def prepare_corpus(books: Path, out: Path, architecture: Architecture) -> tuple[Path, Path]:
    """Make the held-out excerpts and the tokenizer; existing ones are replaced.

    Args:
        books: directory of ``<gutenberg id>.txt``.
        out: directory that gets ``text/books-held-out.jsonl`` and ``tokenizer/``.
        architecture: whose vocabulary and context the tokenizer gets.

    Returns:
        The two paths.

    Raises:
        BadText: a held-out book is missing, or there is no training book.
        OutputError: ``out`` cannot be written.
    """
    split = load_split()
    held_out, tokenizer = out / "text" / HELD_OUT, out / "tokenizer"
    training = split.training_books(books)
    write_held_out(books, split, held_out)
    trained = train_tokenizer(training, architecture.vocabulary, architecture.context)
    with atomic_directory(tokenizer, replace=True) as temporary:
        trained.save_pretrained(temporary)
    return held_out, tokenizer


def write_held_out(books: Path, split: Split, out: Path) -> None:
    """Write the held-out excerpts as JSON lines: id, author, title, text.

    Raises:
        BadText: a held-out book is missing or not UTF-8.
        OutputError: ``out`` cannot be written.
    """
    with atomic_file(out) as temporary, temporary.open("w", encoding="utf-8") as file:
        for book, meta in sorted(split.held_out.items()):
            (document,) = read_documents(str(books / f"{book}.txt")).items
            text = excerpt(document.text, split.skip_fraction, split.excerpt_bytes)
            row = {
                "id": f"gutenberg-{book}",
                "author": meta.author,
                "title": meta.title,
                "text": text,
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def train_tokenizer(
    paths: Sequence[Path], vocabulary: int, context: int
) -> PreTrainedTokenizerFast:
    """Byte-level BPE with one special token, which is put first in every sequence.

    Args:
        paths: UTF-8 text files to learn merges from.
        vocabulary: size including the special token.
        context: recorded as ``model_max_length``.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train(
        [str(path) for path in paths],
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[BOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=BOS,
        pad_token=BOS,
        model_max_length=context,
    )
