"""Names of slots, and what the app is told at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from normlens.errors import UsageError
from normlens.workbench.choices import ModelChoice, distinct_names
from normlens.workbench.launch import MODELS, Launch


def test_names_are_short_where_they_can_be_and_distinct_where_they_must(tmp_path: Path) -> None:
    for run in ("one", "two"):
        (tmp_path / run / "model").mkdir(parents=True)
    one, two = (ModelChoice(str(tmp_path / run / "model")) for run in ("one", "two"))
    plain, half = ModelChoice("books-ln"), ModelChoice("books-ln", dtype="bfloat16")
    assert distinct_names([plain, ModelChoice("books-lnfree")]) == ("books-ln", "books-lnfree")
    assert distinct_names([plain, half]) == ("books-ln", "books-ln (bfloat16)")
    assert distinct_names([one]) == ("model",)
    assert distinct_names([one, two]) == ("model in one", "model in two")
    assert distinct_names([plain, plain, half]) == (
        "books-ln",
        "books-ln #2",
        "books-ln (bfloat16)",
    )


def test_the_app_is_told_what_the_command_line_chose(tmp_path: Path) -> None:
    for launch in (
        Launch(),
        Launch(("a", "owner/b"), tmp_path / "r", tmp_path, True, tmp_path / "runs"),
    ):
        assert Launch.from_environment(launch.environment()) == launch
    assert Launch.from_environment({}) == Launch()
    for text in ("[", '"books-ln"', "[1]"):
        with pytest.raises(UsageError, match=MODELS):
            Launch.from_environment({MODELS: text})
