"""Widgets from the parameters an analysis declares: bool, int, float, Literal, text, tuples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal, get_args, get_origin

import streamlit as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from explorer import markup, state
from normlens.catalog import Analysis
from normlens.errors import UsageError


def show(declared: Analysis, elsewhere: frozenset[str] = frozenset()) -> None:
    """The parameters of an analysis; changing one looks for, or asks for, another result.

    Args:
        declared: the analysis.
        elsewhere: parameters that another part of the explorer asks for.
    """
    fields = {name: info for name, info in fields_of(declared).items() if name not in elsewhere}
    if not fields:
        return
    chosen = state.parameters(declared.name)
    label = "Parameters" if chosen is None else "Parameters (changed)"
    with (
        st.expander(label, icon=":material/tune:"),
        st.form(f"parameters-{declared.name}", border=False),
    ):
        current = defaults(declared) | dict(chosen or {})
        values = {
            name: _widget(f"{declared.name}-{name}", name, info, current[name])
            for name, info in fields.items()
        }
        with st.container(horizontal=True):
            applied = st.form_submit_button("Apply", icon=":material/check:")
            reset = st.form_submit_button("Defaults", type="tertiary")
        if reset:
            state.choose_parameters(declared.name, None)
            st.rerun()
        if applied:
            made = validated(declared, values)
            made = {name: value for name, value in made.items() if name in fields}
            usual = {name: value for name, value in defaults(declared).items() if name in fields}
            changed = made if made != usual else None
            state.choose_parameters(declared.name, changed)
            st.rerun()


def fields_of(declared: Analysis) -> Mapping[str, FieldInfo]:
    """The declared parameters by name."""
    return declared.parameters.__pydantic_fields__


def defaults(declared: Analysis) -> dict[str, Any]:
    """The default of every parameter."""
    return asdict(declared.parameters())


def validated(declared: Analysis, values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as the declaration accepts them.

    Raises:
        UsageError: a value out of its bounds; names the parameter.
    """
    try:
        return asdict(declared.parameters(**values))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{declared.name}, {name}: {first['msg']}") from error


def _widget(key: str, name: str, info: FieldInfo, value: Any) -> Any:
    label, help_, kind = name.replace("_", " "), info.description, info.annotation
    if kind is bool:
        return st.toggle(label, value=value, key=key, help=help_)
    if get_origin(kind) is Literal:
        options = list(get_args(kind))
        return st.selectbox(label, options, index=options.index(value), key=key, help=help_)
    if kind in (int, float):
        low, high = _bounds(info, kind)
        step = 1 if kind is int else None
        shown = None if kind is int else "%.6g"
        return st.number_input(
            label, low, high, kind(value), step, key=key, help=help_, format=shown
        )
    if get_origin(kind) is tuple:
        text = st.text_input(
            label, ", ".join(map(str, value)), key=key, help=f"{help_}; separated by commas"
        )
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is str or kind is None:
        return st.text_input(label, value, key=key, help=help_)
    markup.quiet(f"{label} is `{value}`; choose another on the command line.")
    return value


def _bounds(info: FieldInfo, kind: type) -> tuple[Any, Any]:
    """Bounds that are inclusive; open ones are left to the declaration."""
    low = next((m.ge for m in info.metadata if type(m).__name__ == "Ge"), None)
    high = next((m.le for m in info.metadata if type(m).__name__ == "Le"), None)
    return None if low is None else kind(low), None if high is None else kind(high)
