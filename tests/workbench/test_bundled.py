"""The results that come along are those of today's analyses on today's bundled models."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from normlens import catalog
from normlens.records import Records
from normlens.workbench.bundled import bundled_problems, bundled_results, find_bundled


def test_nothing_is_missing_or_out_of_date() -> None:
    """Red: ``make results``."""
    assert bundled_problems(bundled_results()) == []


def test_models_are_related_and_machines_not_named() -> None:
    for name, found in find_bundled(bundled_results()).items():
        assert found.result is not None, name
        origin = found.result.provenance["books-lnfree"]
        assert 0.9 < origin["weight_cosine_to_reference"] < 1
        assert origin["command"].startswith("normlens compare books-ln books-lnfree")
    for record in Records(bundled_results()).models():
        assert {mark.mtime_ns for mark in record.files} == {None}
        assert all(mark.sha256 for mark in record.files)


def test_nothing_lies_there_that_is_not_shown() -> None:
    shown = {path for found in find_bundled(bundled_results()).values() for path in found.paths}
    assert set((bundled_results() / "results").iterdir()) == shown


def test_another_version_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = catalog.get("scale")
    newer = dataclasses.replace(scale, version=scale.version + 1)
    monkeypatch.setattr(catalog, "ALL", (newer, catalog.get("residual")))
    problems = bundled_problems(bundled_results())
    assert [problem.split(":")[0] for problem in problems] == [
        "scale of books-ln",
        "scale of books-lnfree",
    ]


def test_other_weights_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = {}
    for name in ("books-ln", "books-lnfree"):
        source = bundled_results().parent / "models" / name
        copies[name] = shutil.copytree(source, tmp_path / name)
    monkeypatch.setattr("normlens.models.files.bundled_directories", copies.copy)
    assert bundled_problems(bundled_results()) == []
    weights = bytearray((copies["books-ln"] / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copies["books-ln"] / "model.safetensors").write_bytes(weights)
    problems = bundled_problems(bundled_results())
    assert len([problem for problem in problems if "of books-ln:" in problem]) == len(catalog.ALL)
