"""Pytest plugin: the table of architectures in the docs, its cells from test outcomes.

A test marked ``architecture_cell("column")`` and parametrised over ``architecture`` speaks
for one cell. The cell says ``yes`` where every such test passed and ``no`` where one
failed. A test that finds that something does not apply passes after
``record_property("not_applicable", reason)``, and the cell says the reason.
``pytest -m architecture_cell --architecture-table=FILE`` writes the table as JSON.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import pytest

MARKER = "architecture_cell"
VERSIONS = ("normlens", "torch", "transformers", "transformer-lens")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--architecture-table",
        metavar="FILE",
        help="write the outcomes of the tests marked architecture_cell as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--architecture-table")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ArchitectureTable(Path(path)), "architecture-table-writer")


def pytest_itemcollected(item: pytest.Item) -> None:
    marker = item.get_closest_marker(MARKER)
    if marker is not None and isinstance(item, pytest.Function):
        architecture = item.callspec.params["architecture"]
        item.user_properties.append((MARKER, [architecture, marker.args[0]]))


class ArchitectureTable:
    """Collects reports, from workers too, and writes the table when the session ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, str]] = {}
        self.columns: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        if MARKER not in properties or (report.when != "call" and report.passed):
            return
        architecture, column = properties[MARKER]
        self.columns.setdefault(column)
        row = self.rows.setdefault(architecture, {})
        reason = properties.get("not_applicable")
        cell = "no" if report.failed else "not run" if report.skipped else reason or "yes"
        # A failure outweighs a reason, a reason outweighs a success.
        if row.get(column, "yes") == "yes" or cell == "no":
            row[column] = cell

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
