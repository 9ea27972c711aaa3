"""The selection: select boxes that say what a click says, and what stands there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import streamlit as st

from explorer import markup, state
from explorer.guard import guarded
from explorer.resources import Shown
from explorer.tables import plain_numbers
from normlens.comparison.ranking import at_selection
from normlens.figures.selecting import Selection

FIELDS = {
    "layer": "Layer",
    "head": "Head",
    "position": "Token",
    "site": "Site",
    "dimension": "Dimension",
    "neuron": "Neuron",
}
_ANY = "–"


@dataclass(frozen=True)
class Chosen:
    """Writes a select box into the selection."""

    field: str
    key: str

    def __call__(self) -> None:
        """Read the box."""
        value = st.session_state[self.key]
        state.select(**{self.field: None if value == _ANY else value})


def show(shown: Sequence[Shown]) -> None:
    """Select boxes for what the page's results know, and the rows at the selection."""
    results = [item for item in shown if item.result is not None]
    if not results:
        return
    options = choices("|".join(item.digest for item in results), results)
    selection = state.view().selection
    with st.container(border=True, key="selection-bar"):
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            for field, values in options.items():
                _box(field, values, getattr(selection, field))
            if selection != Selection():
                st.button(
                    "Clear",
                    key="selection-clear",
                    type="tertiary",
                    icon=":material/close:",
                    on_click=_clear,
                )
        if selection == Selection():
            markup.quiet(
                "Click a cell or a point of any chart, or choose here: every chart marks it, "
                "every page keeps it, and the address of this page leads back to it."
            )
        else:
            guarded(_selected, results, selection)


def _clear() -> None:
    state.change(selection=Selection())


def _box(field: str, values: Sequence[Any], value: Any) -> None:
    key = f"select-{field}"
    options = [_ANY, *values]
    if value is not None and value not in values:
        options.append(value)
    st.session_state[key] = _ANY if value is None else value
    st.selectbox(
        FIELDS[field],
        options,
        key=key,
        on_change=Chosen(field, key),
        width=170 if field == "site" else 108,
    )


def _selected(results: Sequence[Shown], selection: Selection) -> None:
    found = [
        at_selection(item.result, selection).assign(analysis=item.analysis)
        for item in results
        if item.result is not None
    ]
    rows = [frame for frame in found if len(frame)]
    if not rows:
        markup.quiet(f"{words(selection)}: no table of this page has a row there.")
        return
    frame = pd.concat(rows, ignore_index=True)
    first = [c for c in ("analysis", "table") if c in frame]
    markup.quiet(f"Selected: {words(selection)}")
    st.dataframe(
        frame,
        hide_index=True,
        height=min(300, 40 + 35 * len(frame)),
        column_order=list(dict.fromkeys(c for c in (*first, *frame.columns) if c != "doc")),
        column_config=plain_numbers(frame),
    )


def words(selection: Selection) -> str:
    """``layer 3, head 5``."""
    said = {name: value for name, value in asdict(selection).items() if value is not None}
    return ", ".join(f"{FIELDS[name].lower()} {value}" for name, value in said.items())


@st.cache_data(show_spinner=False, max_entries=64)
def choices(digest: str, _shown: Sequence[Shown]) -> dict[str, list[Any]]:
    """The values that each field of the selection takes in the tables of results."""
    found: dict[str, dict[Any, None]] = {}
    for item in _shown:
        for frame in item.result.tables.values() if item.result else ():
            for field in FIELDS:
                if field in frame:
                    values = frame[field].dropna().unique().tolist()
                    found.setdefault(field, {}).update(dict.fromkeys(values))
    return {
        field: list(found[field]) if field == "site" else sorted(map(int, found[field]))
        for field in FIELDS
        if found.get(field)
    }
