"""Analyses of one prompt: found in the store, else run in process while the reader waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import streamlit as st

from explorer import markup, navigation, parameters, resources, section, state
from explorer.guard import guarded
from explorer.resources import Shown
from normlens import catalog
from normlens.catalog import Analysis
from normlens.workbench.choices import distinct_names
from normlens.workbench.prompts import run_prompt
from normlens.workbench.snapshots import Snapshot, Snapshots

PROMPT = frozenset({"prompt", "target", "against"})
"""Parameters that the Text page asks for."""

PAIR = frozenset({"clean", "corrupted", "answer", "wrong"})
"""Parameters of analyses that need a contrast pair instead of one prompt."""


@dataclass(frozen=True)
class Waiting:
    """Says in a place of the page that a model is in use elsewhere."""

    place: Any

    def __call__(self, name: str) -> None:
        """Called before the wait begins, by the thread that draws the page."""
        with self.place:
            markup.note(f"{name} is busy in another session; this run starts when it is free.")


def current() -> Snapshot | None:
    """The prompt of the session, None where there is none."""
    identifier = state.view().snapshot
    return Snapshots(resources.options().store).load(identifier) if identifier else None


def stored(name: str) -> Shown:
    """What is stored of a prompt analysis for the session's prompt; runs nothing."""
    snapshot = guarded(current)
    wanted = None if snapshot is None else values(catalog.get(name), snapshot)
    if snapshot is None or wanted is None:
        return resources.as_shown(name, None)
    return resources.shown(name, wanted, bos=snapshot.bos)


def values(declared: Analysis, snapshot: Snapshot) -> dict[str, Any] | None:
    """Parameters of an analysis from a prompt; None where it needs a pair that is not there."""
    said = {"prompt": snapshot.prompt, "target": snapshot.target, "against": snapshot.against}
    said |= dict(snapshot.extra)
    fields = parameters.fields_of(declared)
    if PAIR & set(fields) and not said.get("corrupted"):
        return None
    chosen = dict(state.parameters(declared.name) or {})
    return chosen | {field: said[field] for field in fields if field in said}


def show(declared: Analysis, *, with_line: bool = True) -> None:
    """A prompt analysis as a part of a page, with the prompt over it or without."""
    markup.heading(declared.title, declared.question, anchor=declared.name)
    guarded(_body, declared, with_line)


def _body(declared: Analysis, with_line: bool) -> None:
    snapshot = current()
    if snapshot is None:
        markup.empty(
            "No prompt yet",
            "Give one on the Text page; it stays with every page until you give another.",
        )
        navigation.link("Text", "Choose a prompt")
        return
    if with_line:
        line(snapshot)
    wanted = values(declared, snapshot)
    if wanted is None:
        markup.empty(
            "This needs a contrast pair",
            "Two prompts of equal length that differ in the word which decides the next token. "
            "Choose one of a set, or write your own, on the Text page.",
        )
        navigation.link("Text", "Choose a contrast pair")
        return
    shown = resources.shown(declared.name, wanted, bos=snapshot.bos)
    if shown.result is None or shown.missing:
        made = run(declared, snapshot, wanted)
        shown = resources.shown(declared.name, wanted, bos=snapshot.bos)
        if shown.result is not None and not shown.missing:
            # What stands above this part of the page was drawn without the result.
            st.rerun()
        shown = made
    section.content(shown, declared, place="prompt-")
    guarded(parameters.show, declared, PROMPT | PAIR)


def run(declared: Analysis, snapshot: Snapshot, wanted: Mapping[str, Any]) -> Shown:
    """Run in this process; the store keeps the result.

    Raises:
        NormlensError: a model cannot be opened, or the prompt does not suit it.
    """
    slots = state.view().slots
    names = ", ".join(distinct_names(slots))
    place = st.empty()
    with st.spinner(f"Running the prompt on {len(slots)} models", show_time=True):
        results = run_prompt(
            resources.opened(slots),
            resources.sources(),
            slots,
            [declared.name],
            {declared.name: wanted},
            bos=snapshot.bos,
            store=resources.options().store,
            waiting=Waiting(place),
        )
    place.empty()
    if not results:
        markup.note(f"{declared.title} gave no result for {names}.", "warning")
        return resources.as_shown(declared.name, None)
    return resources.as_shown(declared.name, results[0])


def line(snapshot: Snapshot) -> None:
    """The prompt in one line, as it is, and what it is asked."""
    shown = snapshot.prompt if len(snapshot.prompt) <= 240 else snapshot.prompt[:240] + " …"
    asked = [f"target {snapshot.target!r}"] if snapshot.target else []
    asked += [f"against {snapshot.against!r}"] if snapshot.against else []
    pills = "".join(f'<span class="nl-pill">{escape(text)}</span>' for text in asked)
    bos = "BOS prepended" if snapshot.bos == "prepend" else "no BOS"
    markup.put(
        f'<div class="nl-prompt"><code>{escape(shown)}</code>{pills}'
        f'<span class="nl-pill">{bos}</span></div>'
    )
