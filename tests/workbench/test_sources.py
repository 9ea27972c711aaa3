"""A browser opens what is listed or lies under the model root, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from normlens.errors import ModelNotFound, UsageError
from normlens.workbench.sources import Sources


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("mine", "runs/one/model", "books-ln"):
        directory = tmp_path / "root" / name
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
        (directory / "model.safetensors").write_bytes(b"damaged")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text("{}")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    return tmp_path / "root"


def test_lists_models_and_directories(root: Path) -> None:
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text("not JSON")
    entries = {entry.id: entry for entry in Sources(root).entries()}
    assert entries["books-ln"].origin == "bundled"
    assert {id for id, entry in entries.items() if entry.origin == "directory"} == {
        "mine",
        "runs/one/model",
        "./books-ln",
        "broken",
    }
    assert not entries["broken"].available and "config.json" in entries["broken"].hint
    assert not [entry for entry in Sources().entries() if entry.origin == "directory"]


def test_resolves_below_the_root(root: Path) -> None:
    sources = Sources(root)
    assert sources.resolve("books-ln") == "books-ln"
    assert sources.resolve("./books-ln") == str(root / "books-ln")
    assert sources.resolve("runs/one/model") == str(root / "runs/one/model")
    assert sources.resolve(str(root / "mine")) == str(root / "mine")
    assert sources.resolve("untrained:mine@3") == f"untrained:{root / 'mine'}@3"


@pytest.mark.parametrize("id", ["../outside", "{outside}", "mine/../../outside", "link"])
def test_nothing_outside_the_root(root: Path, id: str) -> None:
    wanted = id.format(outside=root.parent / "outside")
    with pytest.raises(UsageError, match="outside the model root"):
        Sources(root).resolve(wanted)
    with pytest.raises(UsageError, match="outside the model root"):
        Sources(root).resolve(f"untrained:{wanted}")
    with pytest.raises((UsageError, ModelNotFound)):
        Sources().resolve(wanted)


def test_what_the_command_line_named_is_allowed(root: Path) -> None:
    outside = str(root.parent / "outside")
    assert Sources(root, named=(outside,)).resolve(outside) == outside


def test_hub_ids_only_online(root: Path) -> None:
    with pytest.raises(ModelNotFound, match="--online"):
        Sources(root).resolve("someone/model")
    with pytest.raises(ModelNotFound, match="--online"):
        Sources(root).resolve("gpt2")
    assert Sources(root, online=True).resolve("someone/model") == "someone/model"


def test_a_wrong_name_gets_a_hint(root: Path) -> None:
    with pytest.raises(ModelNotFound, match="did you mean mine"):
        Sources(root).resolve("mime")
