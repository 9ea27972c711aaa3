"""One analysis on a page: its question, what it found, whether to trust it, what it means."""

from __future__ import annotations

from html import escape

import streamlit as st

from explorer import headline, markup, missing, panel, parameters, resources, tables
from explorer.guard import guarded
from explorer.resources import Shown
from normlens import catalog
from normlens.catalog import Analysis
from normlens.report.building import check_rows
from normlens.report.numbers import citation_url, number, prose
from normlens.results import Result


def show(name: str) -> None:
    """An analysis of the corpus, from the store; what is missing can be computed here."""
    declared = catalog.get(name)
    markup.heading(declared.title, declared.question, anchor=name)
    guarded(_body, declared)


def _body(declared: Analysis) -> None:
    shown = resources.shown(declared.name)
    if shown.missing:
        missing.show(shown)
    if shown.result is not None:
        content(shown, declared)
    parameters.show(declared)


def content(shown: Shown, declared: Analysis, place: str = "") -> None:
    """What an analysis found, in the order a reader needs it."""
    result = shown.result
    if result is None:
        return
    guarded(trust, result)
    guarded(headline.show, [shown])
    panel.grid([(shown, name) for name in declared.figures], place)
    guarded(tables.show, result)
    guarded(explanation, declared)


def trust(result: Result) -> None:
    """Checks, warnings and what does not apply: never hidden."""
    for model, why in result.not_applicable.items():
        markup.note(f"Not applicable to {model}: {why}")
    for warning in result.warnings:
        markup.note(warning, "warning")
    rows = check_rows([result], result.models)
    if not rows:
        return
    parts = []
    for row in rows:
        tone, mark = ("nl-good-text", "✓") if row.passed else ("nl-bad-text", "✕ failed")
        values = "; ".join(
            f"{model}: {number(check.value)} (at most {number(check.tolerance)})"
            for model, check in row.by_model.items()
            if check is not None
        )
        parts.append(
            f'<span class="nl-pill" title="{escape(f"{row.doc}. {values}")}">'
            f'<span class="{tone}">{mark}</span> {escape(row.name.replace("_", " "))}</span>'
        )
        if not row.passed:
            markup.note(f"Check failed: {row.name}: {row.doc}. {values}", "error")
    markup.put(f'<div class="nl-bar"><span>Checks</span>{"".join(parts)}</div>')


def explanation(declared: Analysis) -> None:
    """What the numbers mean, and where the definitions come from."""
    with st.expander("What this means", icon=":material/menu_book:"):
        sources = "".join(_citation(c.reference, c.identifier, c.place) for c in declared.citations)
        markup.put(
            f'<div class="nl-explain"><p>{prose(declared.explanation)}</p><ul>{sources}</ul></div>'
        )


def _citation(reference: str, identifier: str, place: str) -> str:
    url = citation_url(identifier)
    text = escape(f"{reference}{', ' + place if place else ''}")
    linked = f'<a href="{escape(url)}" target="_blank" rel="noreferrer">{text}</a>'
    return f"<li>{linked if url else text}</li>"
