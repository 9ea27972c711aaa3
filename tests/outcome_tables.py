"""Pytest plugin: the docs' tables of outcomes, their cells from tests.

A test marked with one of :data:`TABLES`, such as ``architecture_cell("column")``, speaks for
one cell. Its row is the test's parameter of the table's name, or the marker's ``row=``; a
``spec`` stands for its kind. The
cell says ``yes`` where every such test passed and ``no`` where one failed. A test that finds
that something does not apply passes after ``record_property("not_applicable", reason)``, and
the cell says the reason; one that measured an error passes after
``record_property("measured", error)``, and the cell says the largest.
``pytest -m architecture_cell --outcome-tables=DIRECTORY`` writes the table as JSON.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

VERSIONS = ("normlens", "torch", "transformers", "transformer-lens")
Cell = str | float


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        marker: of the tests that speak for it.
        parameter: of those tests, which names the row.
        file: where it is written, in the directory of the option.
    """

    marker: str
    parameter: str
    file: str


TABLES = (
    Table("architecture_cell", "architecture", "architectures.json"),
    Table("conversion_cell", "architecture", "conversions.json"),
    Table("kind_cell", "kind", "norm-kinds.json"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--outcome-tables",
        metavar="DIRECTORY",
        help="write the outcomes of the tests marked for a table of the docs as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    directory = config.getoption("--outcome-tables")
    if directory and not hasattr(config, "workerinput"):
        for table in TABLES:
            writer = OutcomeTable(table.marker, Path(directory) / table.file)
            config.pluginmanager.register(writer, f"{table.marker}-writer")


def pytest_itemcollected(item: pytest.Item) -> None:
    for table in TABLES:
        for marker in item.iter_markers(table.marker):
            row = marker.kwargs.get("row")
            if row is None:
                assert isinstance(item, pytest.Function)
                parameters = item.callspec.params
                spec = parameters.get("spec")
                row = str(spec.kind if spec else parameters[table.parameter])
            item.user_properties.append((table.marker, [row, marker.args[0]]))


@dataclass(eq=False)  # pluggy keeps plugins in sets
class OutcomeTable:
    """Collects reports, from workers too, and writes the table when the session ends."""

    marker: str
    path: Path
    rows: dict[str, dict[str, Cell]] = field(default_factory=dict[str, dict[str, Cell]])
    columns: dict[str, None] = field(default_factory=dict[str, None])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        properties: dict[str, Any] = dict(report.user_properties)
        cell: Cell = properties.get("not_applicable") or properties.get("measured", "yes")
        if not report.passed:
            cell = "no" if report.failed else "not run"
        for name, place in report.user_properties:
            if name == self.marker:
                row, column = place
                self.columns.setdefault(column)
                cells = self.rows.setdefault(row, {})
                cells[column] = worse(cells.get(column, "yes"), cell)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        # An interrupted session, or one that could not collect, knows only a part.
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not self.rows:
            return
        table = {
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "versions": {
                "python": platform.python_version(),
                **{name: importlib.metadata.version(name) for name in VERSIONS},
            },
            "columns": list(self.columns),
            "rows": self.rows,
        }
        self.path.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n")


def worse(one: Cell, other: Cell) -> Cell:
    """Failure over reason over the larger of two errors over success."""

    def rank(cell: Cell) -> tuple[int, float]:
        if isinstance(cell, float):
            return 1, cell
        return {"yes": 0, "no": 3}.get(cell, 2), 0.0

    return max(one, other, key=rank)
