"""The plugin that turns outcomes of tests into tables of the docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from tests.outcome_tables import OutcomeTable, worse

MARKER = "architecture_cell"


def report(
    cell: tuple[str, str] | None,
    outcome: Literal["passed", "failed", "skipped"],
    when: Literal["setup", "call", "teardown"] = "call",
    reason: str | None = None,
) -> pytest.TestReport:
    properties: list[tuple[str, object]] = [] if cell is None else [(MARKER, list(cell))]
    if reason is not None:
        properties.append(("not_applicable", reason))
    return pytest.TestReport(
        "t", ("t", 1, "t"), {}, outcome, None, when, user_properties=properties
    )


def written(path: Path, reports: list[pytest.TestReport]) -> dict[str, dict[str, str]]:
    table = OutcomeTable(MARKER, path)
    for one in reports:
        table.pytest_runtest_logreport(one)
    table.pytest_sessionfinish(pytest.ExitCode.TESTS_FAILED)
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


def test_a_cell_says_the_worst_of_its_tests(tmp_path: Path) -> None:
    a, b, c = ("gpt2", "view"), ("bert", "view"), ("bert", "scale")
    rows = written(
        tmp_path / "table.json",
        [
            report(a, "passed", "setup"),
            report(a, "passed"),
            report(b, "passed", reason="it is an encoder"),
            report(b, "passed"),
            report(c, "passed"),
            report(c, "failed", "setup"),
            report(c, "passed", reason="too late"),
            report(None, "failed"),
        ],
    )
    assert rows == {"gpt2": {"view": "yes"}, "bert": {"view": "it is an encoder", "scale": "no"}}


def test_a_skipped_test_proves_nothing(tmp_path: Path) -> None:
    cell = ("gpt2", "view")
    rows = written(tmp_path / "table.json", [report(cell, "skipped"), report(cell, "passed")])
    assert rows == {"gpt2": {"view": "not run"}}


def test_an_interrupted_session_keeps_the_old_table(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text("old")
    table = OutcomeTable(MARKER, path)
    table.pytest_runtest_logreport(report(("gpt2", "view"), "passed"))
    table.pytest_sessionfinish(pytest.ExitCode.INTERRUPTED)
    assert path.read_text() == "old"


def test_a_cell_says_its_largest_error_unless_something_is_worse() -> None:
    assert worse(1e-7, 3e-7) == worse(3e-7, 1e-7) == worse("yes", 3e-7) == 3e-7
    assert worse(3e-7, "it is an encoder") == worse("it is an encoder", "yes") == "it is an encoder"
    assert worse("no", 3e-7) == worse("it is an encoder", "no") == "no"


def test_a_test_may_speak_for_two_tables(tmp_path: Path) -> None:
    both = pytest.TestReport(
        "t",
        ("t", 1, "t"),
        {},
        "passed",
        None,
        "call",
        user_properties=[(MARKER, ["gpt2", "view"]), ("kind_cell", ["dyt", "module"])],
    )
    assert written(tmp_path / "table.json", [both]) == {"gpt2": {"view": "yes"}}
