"""Excerpts and tokenizer can be made again to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from normlens.errors import BadText
from normlens.resources import data_path
from normlens.training.corpus import excerpt, prepare_corpus, train_tokenizer, write_held_out
from normlens.training.split import load_split
from normlens.training.text import books, texts
from tests.training.small import excerpts

BUNDLED = data_path("text", "books-held-out.jsonl")


@pytest.fixture
def mini_books(tmp_path: Path) -> Path:
    """The bundled excerpts as if they were the held-out books, and two training books."""
    directory = tmp_path / "books"
    directory.mkdir()
    for book, text in zip(sorted(load_split().held_out), excerpts(), strict=True):
        (directory / f"{book}.txt").write_text(text, encoding="utf-8")
    (directory / "16.txt").write_text(excerpts()[3][:20000], encoding="utf-8")
    (directory / "113.txt").write_text(excerpts()[4][:20000], encoding="utf-8")
    (directory / "12.txt").write_text("withheld", encoding="utf-8")
    return directory


def test_excerpts_of_excerpts_are_the_bundled_bytes(mini_books: Path, tmp_path: Path) -> None:
    whole = load_split().model_copy(update={"skip_fraction": 0.0})
    write_held_out(mini_books, whole, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == BUNDLED.read_bytes()


def test_excerpts_are_whole_paragraphs_within_the_limit() -> None:
    text = "".join(f"paragraph {number} é\n" for number in range(30))
    found = excerpt(text, 0.1, 100)
    # 430 characters: the first tenth ends within paragraph 3.
    assert found in text and found.startswith("paragraph 4 ") and found.endswith("é\n")
    assert 100 - 20 < len(found.encode()) <= 100


def test_the_split_has_enough_books_by_different_authors() -> None:
    rows = [json.loads(line) for line in BUNDLED.read_text(encoding="utf-8").split("\n") if line]
    assert len({row["author"] for row in rows}) == len(rows) >= 12
    assert BUNDLED.stat().st_size <= 1_000_000
    split = load_split()
    assert [row["id"] for row in rows] == [f"gutenberg-{book}" for book in sorted(split.held_out)]
    assert not set(split.withheld) & set(split.held_out)


def test_preparing_twice_gives_equal_bytes(mini_books: Path, tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        sizes = {"tokenizer": 300, "tokenizer-small": 280}
        held_out, *tokenizers = prepare_corpus(mini_books, tmp_path / name, tokenizers=sizes)
        files = [file for directory in tokenizers for file in sorted(directory.iterdir())]
        made.append([p.read_bytes() for p in (held_out, *files)])
    assert made[0] == made[1] and len(made[0]) == 5
    found = [AutoTokenizer.from_pretrained(tmp_path / "a" / size) for size in sizes]
    assert [len(tokenizer) for tokenizer in found] == [300, 280]


def test_a_tokenizer_is_built_like_the_bundled_one(mini_books: Path, tmp_path: Path) -> None:
    made = train_tokenizer(books(mini_books).paths, 300, 128)
    made.save_pretrained(tmp_path)
    assert len(made) == 300 and made.bos_token_id == 0
    for file in ("tokenizer.json", "tokenizer_config.json"):
        found, bundled = (
            json.loads((directory / file).read_text(encoding="utf-8"))
            for directory in (tmp_path, data_path("tokenizer"))
        )
        for content in (found, bundled):
            content.get("model", {}).pop("vocab", None)
            content.get("model", {}).pop("merges", None)
        assert found == bundled


def test_training_leaves_out_held_out_and_withheld_books(mini_books: Path) -> None:
    text = books(mini_books)
    assert [path.name for path in text.paths] == ["16.txt", "113.txt"]
    before = text.sha256
    (mini_books / "16.txt").write_text("another text", encoding="utf-8")
    assert books(mini_books).sha256 != before


def test_texts_are_files_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("one text", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text('{"text": "two"}\n{"text": "three"}\n', encoding="utf-8")
    given = texts([tmp_path / "b.txt", tmp_path / "a.jsonl"])
    assert list(given.documents()) == ["one text", "two", "three"]
    assert list(texts([tmp_path]).documents()) == ["two", "three", "one text"]
    assert texts([tmp_path]).sha256 != given.sha256


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"x", "neither .txt nor .jsonl"),
        ("a.txt", b"\xff", "not UTF-8"),
        ("b", None, "no text"),
    ],
)
def test_unusable_texts(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadText, match=message):
        list(texts([tmp_path / name]).documents())


def test_a_directory_without_books(tmp_path: Path) -> None:
    with pytest.raises(BadText, match="no training book"):
        books(tmp_path)
