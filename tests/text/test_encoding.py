"""Texts become sequences whose every token is accounted for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from normlens.errors import BadText, UsageError
from normlens.text import Document, Documents, encode, encode_prompt, load_corpus, read_documents
from tests.tiny import tokenizer

TOKENIZER = tokenizer()
TEXT = "The old king looked at the sea, and he was silent. " * 12


def documents(*texts: str) -> Documents:
    return Documents("test", tuple(Document(f"d{i}", text) for i, text in enumerate(texts)))


def plain_ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("bos", ["prepend", "none"])
def test_every_token_is_kept_in_order(bos) -> None:
    sequences = encode(documents(TEXT), TOKENIZER, context=32, bos=bos)
    skip = 1 if bos == "prepend" else 0
    seen = [
        i
        for row, n in zip(sequences.ids, sequences.lengths, strict=True)
        for i in row[skip:n].tolist()
    ]
    assert seen == plain_ids(TEXT)[: len(seen)]
    assert len(plain_ids(TEXT)) - len(seen) < 16, "only a short tail may be dropped"
    if bos == "prepend":
        assert set(sequences.ids[:, 0].tolist()) == {TOKENIZER.bos_token_id}


def test_windows_do_not_cross_documents() -> None:
    sequences = encode(documents(TEXT, "A second one. " * 30), TOKENIZER, context=32)
    for row, n, owner in zip(sequences.ids, sequences.lengths, sequences.document, strict=True):
        text = TOKENIZER.decode(row[1:n].tolist())
        assert text in (TEXT, "A second one. " * 30)[int(owner)]


def test_digest_sees_ids_and_bos_policy() -> None:
    base = encode(documents(TEXT), TOKENIZER, context=32)
    assert base.sha256 == encode(documents(TEXT), TOKENIZER, context=32).sha256
    assert base.sha256 != encode(documents(TEXT), TOKENIZER, context=32, bos="none").sha256
    assert base.sha256 != encode(documents(TEXT + "x"), TOKENIZER, context=33).sha256


def test_spread_takes_from_the_whole_corpus() -> None:
    sequences = encode(documents(TEXT * 8), TOKENIZER, context=32)
    chosen = sequences.spread(3)
    assert len(chosen) == 3
    assert chosen.ids[0].equal(sequences.ids[0])
    assert chosen.ids[-1].equal(sequences.ids[-1])
    assert sequences.spread(10**6) is sequences


@given(st.text(min_size=1, max_size=200), st.integers(2, 40))
def test_any_text_is_encoded_or_refused_in_words(text: str, context: int) -> None:
    try:
        sequences = encode(documents(text), TOKENIZER, context=context)
    except BadText:
        assert not plain_ids(text)
        return
    assert sequences.ids.shape[1] == context
    assert int(sequences.lengths.min()) >= 2


def test_prompt_is_never_cut() -> None:
    assert encode_prompt("Alice took the key", TOKENIZER, context=64).lengths.tolist() == [
        1 + len(plain_ids("Alice took the key"))
    ]
    with pytest.raises(BadText, match="context is 8"):
        encode_prompt(TEXT, TOKENIZER, context=8)
    with pytest.raises(BadText, match="fewer than two"):
        encode_prompt("", TOKENIZER, context=8)


def test_tokenizer_without_bos_names_the_way_out() -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer)
    with pytest.raises(UsageError, match="--bos none"):
        encode(documents(TEXT), bare, context=16)
    assert len(encode(documents(TEXT), bare, context=16, bos="none")) > 1


def test_bundled_corpus_has_many_authors() -> None:
    books = read_documents("books")
    assert len(books.items) >= 12
    assert sum(len(item.text.encode()) for item in books.items) <= 1_000_000
    assert len(load_corpus("books", TOKENIZER, context=128, sequences=5)) == 5


def test_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text(TEXT, encoding="utf-8")
    rows = [{"text": TEXT, "id": "x"}, {"text": "Short text."}]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(r) for r in rows), encoding="utf-8")
    assert [d.id for d in read_documents(str(tmp_path)).items] == ["x", "a:2", "b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b" \n", "is empty"),
        ("latin.txt", "caf\xe9".encode("latin-1"), "not UTF-8"),
        ("bad.jsonl", b'{"text": "fine"}\n{"no": 1}', "line 2"),
        ("blank.jsonl", b'{"text": "  "}', "line 1"),
        ("list.jsonl", b"[1]", "line 1"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadText, match=message) as caught:
        read_documents(str(path))
    assert name in str(caught.value)


def test_missing_and_empty_places(tmp_path: Path) -> None:
    with pytest.raises(BadText, match="no text"):
        read_documents(str(tmp_path / "nothing.txt"))
    with pytest.raises(BadText, match=r"holds no \.txt"):
        read_documents(str(tmp_path))
