"""What the page shows, as plain data for the templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normlens.catalog import Citation
from normlens.comparison import Caveat, HeadlineRow, Relation
from normlens.figures import theme
from normlens.results import Check

MOST_ROWS = 120
"""Rows of a table that the page shows."""


@dataclass(frozen=True)
class FigureView:
    """One drawn figure: where it stands on the page, its JSON and its files."""

    identifier: str
    name: str
    height: int
    json: str


@dataclass(frozen=True)
class TableView:
    """The first rows of a table as text."""

    name: str
    doc: str
    file: str
    headings: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    total: int


@dataclass(frozen=True)
class Section:
    """One analysis on the page."""

    identifier: str
    title: str
    question: str
    explanation: str
    citations: tuple[Citation, ...]
    figures: tuple[FigureView, ...]
    tables: tuple[TableView, ...]
    files: tuple[str, ...]
    not_applicable: Mapping[str, str]


@dataclass(frozen=True)
class CheckRow:
    """One check over all models; None where a model did not make it."""

    analysis: str
    name: str
    doc: str
    by_model: Mapping[str, Check | None]

    @property
    def passed(self) -> bool:
        """Whether no model failed it."""
        return all(check is None or check.passed for check in self.by_model.values())


@dataclass(frozen=True)
class ModelView:
    """One model: how it looks, where it comes from, and its sites."""

    identity: theme.Identity
    facts: tuple[tuple[str, str], ...]
    sites: tuple[Mapping[str, Any], ...]
    site_summary: str
    all_verified: bool


@dataclass(frozen=True)
class HeadlineView:
    """One headline number and the decimals that suit all its models."""

    row: HeadlineRow
    places: int


@dataclass(frozen=True)
class HeadlineGroup:
    """The headline numbers of one analysis."""

    title: str
    anchor: str
    rows: tuple[HeadlineView, ...]


@dataclass(frozen=True)
class Page:
    """Everything the template reads."""

    title: str
    command: str
    models: tuple[ModelView, ...]
    headlines: tuple[HeadlineGroup, ...]
    warnings: tuple[str, ...]
    caveats: tuple[Caveat, ...]
    relations: tuple[Relation, ...]
    checks: tuple[CheckRow, ...]
    sections: tuple[Section, ...]
    config: str
    provenance: str

    @property
    def checks_passed(self) -> int:
        """Number of single checks that passed."""
        return sum(c.passed for row in self.checks for c in row.by_model.values() if c)

    @property
    def checks_made(self) -> int:
        """Number of single checks."""
        return sum(1 for row in self.checks for c in row.by_model.values() if c)


def table_file(analysis: str, table: str) -> str:
    """File stem of a table."""
    return f"{analysis}.{table}"


def figure_file(name: str) -> str:
    """File stem of a figure declared as ``module:function``."""
    return name.replace(":", ".")
