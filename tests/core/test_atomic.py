"""Outputs appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from normlens.atomic import atomic_directory, atomic_file
from normlens.errors import OutputError


def test_file_replaces_on_success_only(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    with atomic_file(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_directory_is_refused_unless_replaced(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with atomic_directory(path) as temporary:
        (temporary / "one").write_text("1")
    with pytest.raises(OutputError, match="exists already"), atomic_directory(path):
        pass
    with atomic_directory(path, replace=True) as temporary:
        (temporary / "two").write_text("2")
    assert [p.name for p in path.iterdir()] == ["two"]
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_failure_leaves_the_old_directory(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with atomic_directory(path) as temporary:
        (temporary / "one").write_text("1")
    with pytest.raises(RuntimeError), atomic_directory(path, replace=True) as temporary:
        (temporary / "two").write_text("2")
        raise RuntimeError
    assert [p.name for p in path.iterdir()] == ["one"]
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_unwritable_parent_is_one_clear_error(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(OutputError, match="cannot write to"), atomic_file(blocker / "x"):
        pass
