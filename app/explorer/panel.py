"""One chart with its toolbar: CSV, HTML, image format, Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from explorer import markup, resources, state
from explorer.guard import guarded
from explorer.resources import Shown
from normlens import figures
from normlens.figures.selecting import picked
from normlens.report.export import csv_bytes
from normlens.report.snippet import as_python
from normlens.report.standalone import standalone_html
from normlens.results import Result

More = Callable[[str], None]

_TOOLBAR_HEIGHT = 90
_FORMAT = "image_format"
_TAGS = re.compile(r"<[^>]*>")


@dataclass(frozen=True)
class Csv:
    """A table as CSV, made when it is asked for."""

    table: pd.DataFrame

    def __call__(self) -> bytes:
        """The bytes."""
        return csv_bytes(self.table)


@dataclass(frozen=True)
class Html:
    """A figure as a page of its own, made when it is asked for."""

    result: Result
    name: str
    title: str
    part: Mapping[str, int | str]

    def __call__(self) -> str:
        """The document; the figure is drawn anew, without what only the explorer needs."""
        return standalone_html(figures.draw(self.result, self.name, **self.part), self.title)


@dataclass(frozen=True)
class Clicked:
    """Takes a click in a chart over into the selection."""

    key: str

    def __call__(self) -> None:
        """Read the chart's state; a click beside the marks changes nothing."""
        chosen = st.session_state.get(self.key)
        points = chosen["selection"]["points"] if chosen else []
        if points:
            state.select_also(picked(points[0]))


def show(shown: Shown, name: str, place: str = "") -> float:
    """A panel: the figure called ``name`` of a result, and its toolbar.

    Args:
        shown: with a result.
        name: of the figure, as declared.
        place: tells apart panels of one figure on one page.

    Returns:
        About how high it is, px.
    """
    with st.container(border=True, key=f"panel-{place}{_key(name)}"):
        figure = guarded(resources.figure, shown, name)
        if figure is not None:
            guarded(chart, figure, f"chart-{place}{_key(name)}", name=name)
        guarded(_toolbar, shown, name, place)
    # Plotly's layout has no attributes that a type checker knows of.
    layout: Any = None if figure is None else figure.layout
    return _TOOLBAR_HEIGHT + (0 if layout is None else float(layout.height or 450))


def grid(panels: Sequence[tuple[Shown, str]], place: str = "", more: More | None = None) -> None:
    """Panels in two columns; each goes where there is more room, so that no gap is left.

    Args:
        panels: results and the names of their figures.
        place: as in :func:`show`.
        more: drawn below each panel, from the name of its analysis.
    """
    if not panels:
        return
    columns = st.columns(2) if len(panels) > 1 else [st.container()]
    filled = [0.0] * len(columns)
    for shown, name in panels:
        shortest = filled.index(min(filled))
        with columns[shortest]:
            filled[shortest] += show(shown, name, place)
            if more is not None:
                more(shown.analysis)


def chart(figure: go.Figure, key: str, *, name: str) -> None:
    """A figure of the library as a chart that takes clicks."""
    st.plotly_chart(
        figure,
        theme=None,
        key=key,
        on_select=Clicked(key),
        selection_mode="points",
        config=_config(name),
        alt=title_of(figure),
    )


def title_of(figure: go.Figure) -> str:
    """The first lines of a figure's header as plain text."""
    # Plotly's layout has no attributes that a type checker knows of.
    layout: Any = figure.layout
    return _TAGS.sub("", str(layout.title.text or "").replace("<br>", " · "))[:300]


def _config(name: str) -> dict[str, Any]:
    return {
        "displaylogo": False,
        "responsive": True,
        "toImageButtonOptions": {
            "format": st.session_state.get(_FORMAT, "png"),
            "filename": f"normlens-{_key(name)}",
            "scale": 2,
        },
        "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    }


def _toolbar(shown: Shown, name: str, place: str) -> None:
    result, key = shown.result, f"{place}{_key(name)}"
    if result is None:
        return
    with st.container(horizontal=True, gap="small", key=f"toolbar-{key}"):
        with st.popover("Save", icon=":material/download:", type="tertiary"):
            _downloads(result, name, key)
        with st.popover("Python", icon=":material/code:", type="tertiary", help="Copy as Python"):
            markup.quiet("Draws this chart in a notebook.")
            guarded(_code, result, name)


def _downloads(result: Result, name: str, key: str) -> None:
    stem = f"{result.analysis}-{name.partition(':')[2]}"
    st.download_button(
        "Chart as HTML, works offline",
        data=Html(result, name, stem, resources.followed(name, state.view().selection)),
        file_name=f"{stem}.html",
        mime="text/html",
        key=f"html-{key}",
        on_click="ignore",
        icon=":material/draft:",
        width="stretch",
    )
    for table, frame in result.tables.items():
        if len(frame):
            st.download_button(
                f"{table}.csv",
                data=Csv(frame),
                file_name=f"{result.analysis}.{table}.csv",
                mime="text/csv",
                key=f"csv-{key}-{table}",
                on_click="ignore",
                icon=":material/table:",
                width="stretch",
            )
    _image_format(key)


def _image_format(key: str) -> None:
    """The camera of the chart's own toolbar saves one format; here it is chosen."""
    widget = f"format-{key}"
    st.session_state[widget] = st.session_state.get(_FORMAT, "png")
    st.segmented_control(
        "The camera over the chart saves",
        ("png", "svg"),
        key=widget,
        format_func=str.upper,
        required=True,
        on_change=_keep_format,
        args=(widget,),
    )


def _keep_format(widget: str) -> None:
    st.session_state[_FORMAT] = st.session_state[widget]


def _code(result: Result, name: str) -> None:
    part = resources.followed(name, state.view().selection)
    st.code(as_python(result, name, part), language="python", wrap_lines=True)


def _key(name: str) -> str:
    return name.replace(":", "-").replace("_", "-")
