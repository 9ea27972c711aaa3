"""Tables as CSV for spreadsheets and parquet for programs; figures as JSON for both."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import plotly.io

# A spreadsheet runs a cell that begins with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_table(table: pd.DataFrame, directory: Path, name: str) -> None:
    """Write ``name.parquet`` (as it is) and ``name.csv`` (strings made harmless)."""
    table.to_parquet(directory / f"{name}.parquet", index=False)
    (directory / f"{name}.csv").write_bytes(csv_bytes(table))


def csv_bytes(table: pd.DataFrame) -> bytes:
    r"""UTF-8 CSV with LF line ends, empty cells for NaN, and no cell that is a formula.

    A string cell or heading that begins with ``= + - @``, a tab or a carriage return gets a
    leading apostrophe. Numbers stay numbers. Lone surrogates are written as ``\udcNN``.
    """
    safe = table.copy()
    for column in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[column]):
            safe[column] = safe[column].map(_harmless, na_action="ignore")
    safe.columns = [_harmless(str(column)) for column in safe.columns]
    text = safe.to_csv(index=False, lineterminator="\n")
    return text.encode("utf-8", errors="backslashreplace")


def figure_json(figure: go.Figure) -> str:
    r"""A figure as JSON that may stand inside a script element: ``<`` is ``\u003c``."""
    text = plotly.io.to_json(figure, engine="json")
    if text is None:
        raise TypeError("plotly returned no JSON for a figure")
    return text.replace("<", "\\u003c")


def _harmless(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
