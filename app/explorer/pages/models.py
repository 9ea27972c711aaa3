"""The slots: which models stand side by side, how they are opened, and whether they are sound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import Any

import streamlit as st

from explorer import markup, resources, sidebar, state
from explorer.guard import guarded
from explorer.options import MOST_SLOTS
from explorer.tables import plain_numbers
from explorer.view import DTYPES, SLOT_LETTERS
from normlens.report.numbers import number
from normlens.workbench.check import ModelCheck
from normlens.workbench.choices import ModelChoice, distinct_names

DEVICES = ("cpu", "cuda", "mps")
_CHECKS = "model_checks"


@dataclass(frozen=True)
class Changed:
    """Writes one field of a slot's model."""

    slot: int
    field: str
    key: str

    def __call__(self) -> None:
        """Read the widget."""
        value: Any = st.session_state[self.key]
        if self.field == "dtype":
            value = None if value == DTYPES[0] else value
        if self.field == "revision":
            value = value.strip() or None
        if value in ("", None) and self.field in ("source", "device"):
            return
        slots = list(state.view().slots)
        slots[self.slot] = replace(slots[self.slot], **{self.field: value})
        state.change(slots=tuple(slots))


def render() -> None:
    """Draw the page."""
    markup.title("Models", "Up to four side by side; A is the reference of every difference.")
    slots = state.view().slots
    for start in range(0, len(slots), 2):
        for column, slot in zip(st.columns(2), range(start, len(slots))[:2], strict=False):
            with column:
                guarded(_slot, slot, slots[slot])
    if len(slots) < MOST_SLOTS:
        st.button("Add a model", icon=":material/add:", key="add-slot", on_click=_add)
    guarded(_listing)


def _slot(slot: int, choice: ModelChoice) -> None:
    letter = SLOT_LETTERS[slot]
    name = distinct_names(state.view().slots)[slot]
    with st.container(border=True, key=f"slot-{letter}"):
        role = "reference" if slot == 0 else "compared with A"
        mark = markup.swatch(sidebar.looks()[name])
        markup.put(f"<p>{mark}<b>{letter}</b> · {escape(name)} <small>{role}</small></p>")
        _source(slot, choice)
        with st.container(horizontal=True, vertical_alignment="bottom"):
            _option(slot, "device", choice.device, DEVICES)
            _option(slot, "dtype", choice.dtype or DTYPES[0], DTYPES)
        key = f"slot-convert-{slot}"
        st.session_state[key] = choice.convert
        st.toggle(
            "Convert eps-encoded norms to fixed scales",
            key=key,
            on_change=Changed(slot, "convert", key),
            help="Published LN-free checkpoints write the fixed scale as an enormous eps.",
        )
        if resources.options().online:
            key = f"slot-revision-{slot}"
            st.session_state[key] = choice.revision or ""
            st.text_input("Revision", key=key, on_change=Changed(slot, "revision", key))
        guarded(resources.sources().resolve, choice.source)
        _buttons(slot, choice)
        guarded(_check, choice)


def _source(slot: int, choice: ModelChoice) -> None:
    entries = resources.sources().entries()
    options = [entry.id for entry in entries if entry.available]
    if choice.source not in options:
        options.append(choice.source)
    free = resources.options().online or resources.options().model_root is not None
    key = f"slot-source-{slot}"
    st.session_state[key] = choice.source
    st.selectbox(
        "Model",
        options,
        key=key,
        accept_new_options=free,
        help="A bundled model, one of a package, or a directory under the model root"
        + (", or a hub id owner/name." if resources.options().online else "."),
        on_change=Changed(slot, "source", key),
    )


def _option(slot: int, field: str, value: str, known: tuple[str, ...]) -> None:
    key = f"slot-{field}-{slot}"
    options = list(dict.fromkeys([*known, value]))
    st.session_state[key] = value
    st.selectbox(field.capitalize(), options, key=key, on_change=Changed(slot, field, key))


def _buttons(slot: int, choice: ModelChoice) -> None:
    loaded = choice in resources.pool().loaded()
    with st.container(horizontal=True):
        if st.button("Check", key=f"check-{slot}", icon=":material/verified:"):
            with st.spinner("Opening and verifying every norm", show_time=True):
                made = guarded(_made, choice)
            if made is not None:
                _checks()[choice] = made
        if loaded:
            st.button(
                "Unload",
                key=f"unload-{slot}",
                icon=":material/eject:",
                on_click=resources.pool().release,
                args=(choice,),
            )
        if slot > 0:
            st.button(
                "Make reference",
                key=f"lead-{slot}",
                type="tertiary",
                on_click=_lead,
                args=(slot,),
            )
        if len(state.view().slots) > 1:
            st.button(
                "Remove", key=f"remove-{slot}", type="tertiary", on_click=_remove, args=(slot,)
            )
    if loaded:
        memory = resources.pool().memory(choice)
        busy = "; running for another session" if resources.pool().busy(choice) else ""
        markup.quiet(f"Open, {memory / 1e6:,.0f} MB{busy}")


def _made(choice: ModelChoice) -> ModelCheck:
    return resources.opened([choice]).check(choice, resources.sources())


def _check(choice: ModelChoice) -> None:
    made = _checks().get(choice)
    if made is None:
        return
    if made.verified:
        markup.note("Every norm computes what its specification says.", "good")
    else:
        markup.note("Some norms are not what they seem; see the table.", "error")
    markup.put(markup.facts(made.facts))
    with st.expander(f"Norm sites ({len(made.sites)})"):
        st.dataframe(
            made.sites,
            hide_index=True,
            column_config=plain_numbers(made.sites),
        )


def _listing() -> None:
    markup.heading("What can be opened")
    rows: list[list[Any]] = []
    for entry in resources.sources().entries():
        state_ = '<span class="nl-good-text">here</span>'
        if not entry.available:
            state_ = (
                f'<span class="nl-none">not installed</span><br><code>{escape(entry.hint)}</code>'
            )
        about = f'{escape(entry.id)}<span class="nl-doc">{escape(entry.description)}</span>'
        rows.append(
            [
                about,
                escape(entry.kind.replace("_", " ")),
                number(entry.parameters),
                escape(entry.licence or "unknown"),
                escape(entry.origin),
                state_,
            ]
        )
    headings = ["model", "norms", "parameters", "licence", "from", "state"]
    markup.put(markup.table(headings, rows))
    chosen = resources.options()
    if chosen.model_root is None:
        markup.quiet(
            "Start with `normlens app --model-root DIR` to open your own checkpoints by their path "
            "below DIR, and with `--online` to fetch models from the hub."
        )


def _checks() -> dict[ModelChoice, ModelCheck]:
    return st.session_state.setdefault(_CHECKS, {})


def _add() -> None:
    slots = state.view().slots
    taken = {choice.source for choice in slots}
    free = [e.id for e in resources.sources().entries() if e.available and e.id not in taken]
    state.change(slots=(*slots, ModelChoice(free[0] if free else slots[0].source)))


def _remove(slot: int) -> None:
    slots = list(state.view().slots)
    del slots[slot]
    state.change(slots=tuple(slots))


def _lead(slot: int) -> None:
    slots = list(state.view().slots)
    slots.insert(0, slots.pop(slot))
    state.change(slots=tuple(slots))
