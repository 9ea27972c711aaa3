"""Prompts behind ids, and uploads that are checked like any other text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from normlens.errors import BadText, UnknownName
from normlens.text.documents import read_documents
from normlens.workbench.snapshots import Snapshot, Snapshots
from normlens.workbench.uploads import LIMIT_BYTES, keep_upload

HOSTILE = "<script>alert(1)</script> $x$ **b** </s> 🦉\n\x00 \ud800"


def test_a_prompt_comes_back_under_its_id(tmp_path: Path) -> None:
    kept = Snapshots(tmp_path)
    snapshot = Snapshot(HOSTILE, " she", " he", "none", {"pair": {"clean": "a", "n": 1}})
    id = kept.save(snapshot)
    assert len(id) == 12 and kept.load(id) == snapshot
    assert kept.save(Snapshot(HOSTILE)) != id
    assert [path.stem for path in (tmp_path / "snapshots").iterdir() if path.stem == id]


def test_history_is_newest_first_and_saving_again_moves_up(tmp_path: Path) -> None:
    kept = Snapshots(tmp_path)
    assert kept.history() == []
    for age, prompt in enumerate("abc"):
        path = tmp_path / "snapshots" / f"{kept.save(Snapshot(prompt))}.json"
        os.utime(path, (age, age))
    assert [snapshot.prompt for snapshot in kept.history(2)] == ["c", "b"]
    kept.save(Snapshot("a"))
    assert [snapshot.prompt for snapshot in kept.history()] == ["a", "c", "b"]


@pytest.mark.parametrize("id", ["0" * 12, "", "../../etc/passwd", "ABCDEFABCDEF"])
def test_an_unknown_id_is_one_line(tmp_path: Path, id: str) -> None:
    (tmp_path / "secret.json").write_text('{"prompt": "secret"}')
    with pytest.raises(UnknownName, match="is stored here"):
        Snapshots(tmp_path).load(id)
    with pytest.raises(UnknownName):
        Snapshots(tmp_path).load("../secret")


def test_uploads_become_corpora(tmp_path: Path) -> None:
    text = keep_upload("My notes (1).txt", "Größe, a text".encode(), tmp_path)
    assert read_documents(str(text)).items[0].text == "Größe, a text"
    assert text == keep_upload("My notes (1).txt", "Größe, a text".encode(), tmp_path)
    assert text != keep_upload("other.txt", "Größe, a text".encode(), tmp_path)
    assert text.is_file() and text.is_relative_to(tmp_path)
    table = b'id,year,text\n7,1999,"two\nlines, ""quoted"""\n8,2000,NA\n'
    rows = read_documents(str(keep_upload("t.csv", table, tmp_path)))
    assert [(row.id, row.text) for row in rows.items] == [
        ("7", 'two\nlines, "quoted"'),
        ("8", "NA"),
    ]
    jsonl = keep_upload("../../x.jsonl", b'{"text": "a"}\n{"text": "b"}\n', tmp_path)
    assert len(read_documents(str(jsonl)).items) == 2
    assert jsonl.is_relative_to(tmp_path / "uploads")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.pdf", b"%PDF", "a.pdf is no .txt, .jsonl, .csv file"),
        ("a.txt", b"\xff\xfe", "a.txt is not UTF-8"),
        ("a.txt", b"  \n", "a.txt is empty"),
        ("a.txt", b"x" * (LIMIT_BYTES + 1), "the limit is 20 MB"),
        ("a.jsonl", b'{"text": "a"}\n{"words": 1}\n', "a.jsonl line 2"),
        ("a.csv", b"", "a.csv is not a readable CSV"),
        ("a.csv", b"title,words\na,b\n", "no column 'text'"),
        ("a.csv", b"text\n\xff\n", "a.csv is not UTF-8"),
        ("a.csv", b'text\na\n""\n', "'text' is empty"),
    ],
)
def test_a_wrong_upload_is_one_line_and_leaves_nothing(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    with pytest.raises(BadText) as caught:
        keep_upload(name, data, tmp_path)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
