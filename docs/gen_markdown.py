"""Markdown that the pages made from code are written in."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parent.parent
OUTCOMES = ("yes", "no", "not run")
ARXIV = re.compile(r"\b(\d{4}\.\d{4,5})\b")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the cells are Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """Plain text as Markdown that renders as that text, in table cells too."""
    return re.sub(r"([\\`*_{}\[\]|#])", r"\\\1", html.escape(text, quote=False))


def linked(text: str) -> str:
    """Plain text as Markdown, with its arXiv ids as links."""
    return ARXIV.sub(r"[\1](https://arxiv.org/abs/\1)", escape(text))


def outcomes(name: str, first: str) -> str:
    """A table of test outcomes, with a number for each reason and the reasons below.

    Args:
        name: of the file under ``docs`` that ``make tables`` wrote.
        first: heading of the first column.

    Raises:
        PluginError: the file is missing.
    """
    path = ROOT / "docs" / name
    if not path.is_file():
        raise PluginError(f"docs/{name} is missing; run make tables")
    found = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for row in found["rows"].values() for cell in row.values()]
    reasons = [cell for cell in dict.fromkeys(cells) if not _is_outcome(cell)]
    marks = {reason: f"({number})" for number, reason in enumerate(reasons, start=1)}
    rows = [
        (f"`{row}`", *(_cell(cells.get(column, "not run"), marks) for column in found["columns"]))
        for row, cells in found["rows"].items()
    ]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    parts = [
        table((first, *map(escape, found["columns"])), rows),
        *(f"{mark} {escape(reason)}" for reason, mark in marks.items()),
        f"Measured on {found['date']} with {escape(versions)}: `make tables`.",
    ]
    return "\n\n".join(parts)


def _is_outcome(cell: Any) -> bool:
    return isinstance(cell, float) or cell in OUTCOMES


def _cell(cell: Any, marks: dict[str, str]) -> str:
    return f"{cell:.0e}" if isinstance(cell, float) else str(marks.get(cell, cell))
