"""The books corpus: its held-out excerpts and its tokenizers.

Both are functions of the books and the split alone, so they can be made again to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from normlens.atomic import atomic_directory, atomic_file
from normlens.text.documents import read_documents
from normlens.training.split import Split, load_split

BOS = "<|bos|>"
HELD_OUT = "books-held-out.jsonl"
CONTEXT = 128
TOKENIZERS: Mapping[str, int] = MappingProxyType({"tokenizer": 4096, "tokenizer-512": 512})
"""Vocabulary of each bundled tokenizer; the small one leaves a narrow model its parameters."""


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


def prepare_corpus(
    books: Path,
    out: Path,
    *,
    tokenizers: Mapping[str, int] = TOKENIZERS,
    context: int = CONTEXT,
) -> tuple[Path, ...]:
    """Make the held-out excerpts and the tokenizers; existing ones are replaced.

    Args:
        books: directory of ``<gutenberg id>.txt``.
        out: directory that gets ``text/books-held-out.jsonl`` and a directory a tokenizer.
        tokenizers: vocabulary of each by the name of its directory.
        context: recorded with each as its longest sequence.

    Returns:
        The paths.

    Raises:
        BadText: a held-out book is missing, or there is no training book.
        OutputError: ``out`` cannot be written.
    """
    split = load_split()
    held_out = out / "text" / HELD_OUT
    training = split.training_books(books)
    write_held_out(books, split, held_out)
    for name, vocabulary in tokenizers.items():
        trained = train_tokenizer(training, vocabulary, context)
        with atomic_directory(out / name, replace=True) as temporary:
            trained.save_pretrained(temporary)
    return (held_out, *(out / name for name in tokenizers))


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
