"""The manifest lists what is under data/, and refuses models that came from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from normlens.errors import StoreMismatch, UsageError
from normlens.resources import data_path
from normlens.training.manifest import build_manifest, manifest_problems, write_manifest
from normlens.training.recipe import load_recipe
from normlens.training.split import corpus_hash


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data directory with a text, the books in use, and two models of one lineage."""
    root, books = tmp_path / "data", tmp_path / "books"
    books.mkdir()
    (books / "16.txt").write_text("A training book.", encoding="utf-8")
    (root / "text").mkdir(parents=True)
    (root / "text" / "a.jsonl").write_text("{}", encoding="utf-8")
    for name, ancestor in (("books-ln", None), ("books-control", "books-ln")):
        directory = root / "models" / name
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_bytes(name.encode())
        card = {
            "name": name,
            "purpose": "A test.",
            "command": f"normlens train {name}",
            "ancestor": ancestor,
            "ancestor_sha256": ancestor
            and corpus_hash([root / "models" / ancestor / "model.safetensors"]),
            "recipe_sha256": load_recipe(name).digest(),
            "corpus_sha256": corpus_hash([books / "16.txt"]),
        }
        (directory / "normlens.json").write_text(json.dumps(card), encoding="utf-8")
    write_manifest(root, books)
    return root


def test_the_bundled_data_is_what_its_manifest_says() -> None:
    assert manifest_problems(data_path()) == []


def test_the_bundled_manifest_names_the_books() -> None:
    books = json.loads(data_path("MANIFEST.json").read_text(encoding="utf-8"))["books"]
    assert len(books["held_out"]) >= 12 and len(books["training"]) >= 40
    parts = [set(books[part]) for part in ("training", "held_out", "withheld")]
    assert sum(len(part) for part in parts) == len(set().union(*parts))


def test_every_file_has_a_source_a_licence_and_a_digest(root: Path) -> None:
    manifest = json.loads((root / "MANIFEST.json").read_text(encoding="utf-8"))
    assert set(manifest["files"]) == {
        "text/a.jsonl",
        *(
            f"models/{model}/{file}"
            for model in ("books-ln", "books-control")
            for file in ("model.safetensors", "normlens.json")
        ),
    }
    for entry in manifest["files"].values():
        assert entry["source"] and entry["licence"] and len(entry["sha256"]) == 64
    assert manifest["models"]["books-control"]["ancestor"] == "books-ln"
    assert (
        manifest["files"]["models/books-ln/model.safetensors"]["command"]
        == "normlens train books-ln"
    )


def test_changes_are_found(root: Path) -> None:
    assert manifest_problems(root) == []
    (root / "text" / "a.jsonl").write_text("{ }", encoding="utf-8")
    (root / "text" / "b.jsonl").write_text("{}", encoding="utf-8")
    (root / "models" / "books-ln" / "model.safetensors").unlink()
    assert manifest_problems(root) == [
        "text/b.jsonl is not in MANIFEST.json",
        "models/books-ln/model.safetensors is in MANIFEST.json but missing",
        "text/a.jsonl differs from its digest in MANIFEST.json",
    ]


def test_the_books_are_kept_when_they_are_not_given(root: Path) -> None:
    before = (root / "MANIFEST.json").read_bytes()
    write_manifest(root, None)
    assert (root / "MANIFEST.json").read_bytes() == before


@pytest.mark.parametrize("field", ["recipe_sha256", "corpus_sha256", "ancestor_sha256"])
def test_a_model_from_elsewhere_is_refused(root: Path, field: str) -> None:
    card = root / "models" / "books-control" / "normlens.json"
    content = json.loads(card.read_text(encoding="utf-8"))
    card.write_text(json.dumps({**content, field: "0" * 64}), encoding="utf-8")
    with pytest.raises(StoreMismatch, match=f"books-control has {field}"):
        build_manifest(root, None)


def test_a_file_of_unknown_origin_is_refused(root: Path) -> None:
    (root / "stray.bin").write_bytes(b"")
    with pytest.raises(UsageError, match=r"stray\.bin has no known origin"):
        build_manifest(root, None)
