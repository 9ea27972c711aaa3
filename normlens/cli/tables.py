"""Tables on the terminal."""

from __future__ import annotations

import math
import sys

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from normlens.results import Result


def console() -> Console:
    """Standard output; wide when it is not a terminal, so that pipes get whole rows."""
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


def number(value: float) -> str:
    """Four significant digits; ``n/a`` for NaN."""
    return "n/a" if math.isnan(value) else f"{value:.4g}"


def print_frame(frame: pd.DataFrame, title: str | None = None) -> None:
    """Print every row of a frame."""
    table = Table(title=title, title_justify="left")
    for name in frame.columns:
        numeric = pd.api.types.is_numeric_dtype(frame[name])
        table.add_column(str(name), justify="right" if numeric else "left", overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*(_cell(value) for value in row))
    console().print(table)


def print_result(result: Result) -> None:
    """Headline numbers side by side, then checks and warnings."""
    table = Table(title=result.analysis, title_justify="left")
    table.add_column("number")
    table.add_column("unit")
    for model in result.models:
        table.add_column(escape(model), justify="right")
    names = dict.fromkeys(h.name for hs in result.headline.values() for h in hs)
    for name in names:
        cells, unit = [], ""
        for model in result.models:
            found = next((h for h in result.headline[model] if h.name == name), None)
            unit = found.unit if found else unit
            cells.append(
                "n/a" if found is None else _with_interval(found.value, found.low, found.high)
            )
        table.add_row(escape(name), escape(unit), *cells)
    out = console()
    out.print(table)
    for model, reason in result.not_applicable.items():
        out.print(f"{escape(model)}: not applicable: {escape(reason)}")
    for model, origin in result.provenance.items():
        if quantised := origin.get("quantised_from"):
            out.print(
                f"warning: {escape(model)} was dequantised from {escape(str(quantised))}: outliers "
                "and rounding describe the quantiser too"
            )
    for model, checks in result.checks.items():
        for check in checks:
            verdict = "ok" if check.passed else "FAILED"
            out.print(
                f"check {verdict}: {escape(model)}: {escape(check.name)} "
                f"{check.value:.3g} (tolerance {check.tolerance:.3g})"
            )
    for warning in result.warnings:
        out.print(f"warning: {escape(warning)}")


def _with_interval(value: float, low: float, high: float) -> str:
    if math.isnan(low):
        return number(value)
    return f"{number(value)} [{number(low)}, {number(high)}]"


def _cell(value: object) -> str:
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, float):
        return "" if math.isnan(value) else number(value)
    return escape(str(value))
