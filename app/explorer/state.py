"""The session's view: one object in the session state, mirrored in the URL.

Widgets never own a value: before each is drawn it is set from the view, and its callback
writes the view. So values survive page switches, and a click, a select box and a link are
three ways to change the same thing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import streamlit as st

from explorer.options import read_options
from explorer.view import View, from_params, to_params
from normlens.figures.selecting import Selection
from normlens.workbench.choices import ModelChoice

_VIEW, _WRITTEN, _PARAMETERS = "view", "written_params", "parameters"
_REPLACED = "replaced_params"

LATE_SECONDS = 2.0
"""How long after a change the browser may still send the address from before it."""


def begin() -> None:
    """Make the view of a new session, or take over a URL that was changed from outside."""
    params = st.query_params.to_dict()
    if _VIEW not in st.session_state:
        slots = tuple(ModelChoice(name) for name in read_options().models)
        st.session_state[_VIEW] = from_params(params, View(slots), _uploads())
        st.session_state[_WRITTEN] = {}
        st.session_state[_REPLACED] = ({}, 0.0)
        st.session_state[_PARAMETERS] = {}
    elif params and params != st.session_state[_WRITTEN] and not _late(params):
        plain = replace(view(), selection=Selection(), depth="absolute")
        st.session_state[_VIEW] = from_params(params, plain, _uploads())


def finish() -> None:
    """Write the view into the URL where it has changed."""
    wanted, found = to_params(view()), st.query_params.to_dict()
    if found != wanted:
        st.query_params.from_dict(wanted)
        st.session_state[_REPLACED] = (found, time.monotonic())
    st.session_state[_WRITTEN] = wanted


def _late(params: Mapping[str, str]) -> bool:
    """Whether this address was sent before the browser heard of the one that replaced it.

    Without this, two quick actions end at what was there before the first.
    """
    replaced, at = st.session_state[_REPLACED]
    return params == replaced and time.monotonic() - at < LATE_SECONDS


def view() -> View:
    """What the session looks at."""
    return st.session_state[_VIEW]


def change(**changes: Any) -> None:
    """Change fields of the view."""
    st.session_state[_VIEW] = replace(view(), **changes)


def select(**changes: Any) -> None:
    """Change fields of the selection; None clears one."""
    change(selection=replace(view().selection, **changes))


def select_also(picked: Selection) -> None:
    """Take over what a click says, and keep what it does not speak of."""
    said = {name: value for name, value in asdict(picked).items() if value is not None}
    if said:
        select(**said)


def parameters(analysis: str) -> Mapping[str, Any] | None:
    """Parameters chosen for an analysis; None for its defaults."""
    return st.session_state[_PARAMETERS].get(analysis)


def choose_parameters(analysis: str, chosen: Mapping[str, Any] | None) -> None:
    """Choose parameters of an analysis; None for its defaults."""
    kept = dict(st.session_state[_PARAMETERS])
    kept.pop(analysis, None)
    if chosen:
        kept[analysis] = dict(chosen)
    st.session_state[_PARAMETERS] = kept


def _uploads() -> Path:
    return read_options().store / "uploads"


def dark() -> bool:
    """Whether the reader's theme is dark."""
    return st.context.theme.type == "dark"
