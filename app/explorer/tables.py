"""A result's tables, with the unit and the meaning of every column."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from explorer import markup
from explorer.panel import Csv
from normlens.report.building import UNSHOWN_TABLES
from normlens.report.numbers import unit
from normlens.results import Result, TableSchema

MOST_ROWS = 5000


def show(result: Result) -> None:
    """One table at a time, chosen by name; empty ones are left out."""
    names = [n for n, frame in result.tables.items() if len(frame) and n not in UNSHOWN_TABLES]
    if not names:
        markup.quiet("No table has a row.")
        return
    with st.expander(f"Tables ({len(names)})", icon=":material/table:"):
        name = st.segmented_control(
            "table",
            names,
            default=names[0],
            required=True,
            key=f"table-{result.analysis}",
            persist_state="session",
            label_visibility="collapsed",
        )
        _table(result, name if name in names else names[0])


def _table(result: Result, name: str) -> None:
    frame, schema = result.tables[name], result.schemas[name]
    more = f" The first {MOST_ROWS:,} of {len(frame):,} rows." if len(frame) > MOST_ROWS else ""
    markup.quiet(schema.doc + more)
    st.dataframe(
        frame.head(MOST_ROWS),
        hide_index=True,
        height=min(420, 40 + 35 * len(frame)),
        column_config=column_config(schema, frame),
        column_order=[c for c in frame.columns if c != "status" or (frame[c] != "ok").any()],
    )
    st.download_button(
        f"{name}.csv",
        data=Csv(frame),
        file_name=f"{result.analysis}.{name}.csv",
        mime="text/csv",
        key=f"table-csv-{result.analysis}",
        on_click="ignore",
        icon=":material/download:",
    )


def column_config(schema: TableSchema, frame: pd.DataFrame) -> dict[str, Any]:
    """Headings with units, help from the declaration, four significant digits."""
    declared = {column.name: column for column in schema.columns}
    config: dict[str, Any] = {}
    for name in map(str, frame.columns):
        column = declared.get(name)
        label = name if column is None or not unit(column.unit) else f"{name} [{column.unit}]"
        doc = None if column is None else column.doc
        if pd.api.types.is_float_dtype(frame[name]):
            config[name] = st.column_config.NumberColumn(label, help=doc, format="%.4g")
        else:
            config[name] = st.column_config.Column(label, help=doc)
    return config


def plain_numbers(frame: pd.DataFrame) -> dict[str, Any]:
    """Four significant digits for every column of numbers."""
    return {
        name: st.column_config.NumberColumn(format="%.4g")
        for name in map(str, frame.columns)
        if pd.api.types.is_float_dtype(frame[name])
    }
