"""HTML of our own: every text that is not written here passes through ``escape``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal

import streamlit as st

from normlens.figures.theme import Identity
from normlens.report.numbers import prose

Tone = Literal["note", "warning", "error", "good"]
_ICONS = {"note": "ℹ", "warning": "▲", "error": "✕", "good": "✓"}


def put(body: str) -> None:
    """Show HTML that is safe already."""
    st.html(body)


def note(text: str, tone: Tone = "note") -> None:
    """One line that is never hidden; backticks make code."""
    role = ' role="alert"' if tone == "error" else ""
    put(
        f'<p class="nl-note nl-{tone}"{role}><span class="nl-icon" aria-hidden="true">'
        f"{_ICONS[tone]}</span><span>{prose(text)}</span></p>"
    )


def lead(text: str) -> None:
    """The sentence under a heading."""
    put(f'<p class="nl-lead">{prose(text)}</p>')


def quiet(text: str) -> None:
    """A remark."""
    put(f'<p class="nl-quiet">{prose(text)}</p>')


def title(text: str, question: str = "") -> None:
    """The heading of a page and the question it answers."""
    below = f'<p class="nl-lead">{prose(question)}</p>' if question else ""
    put(f'<div class="nl-title"><h1>{escape(text)}</h1>{below}</div>')


def heading(text: str, question: str = "", anchor: str = "") -> None:
    """The heading of a part of a page."""
    below = f'<p class="nl-question">{prose(question)}</p>' if question else ""
    where = f' id="{escape(anchor)}"' if anchor else ""
    put(f'<div class="nl-heading"{where}><h2>{escape(text)}</h2>{below}</div>')


def empty(headline: str, text: str) -> None:
    """What stands where there is nothing yet: says what would be here and how to get it."""
    put(
        f'<div class="nl-empty"><p class="nl-empty-head">{escape(headline)}</p>'
        f"<p>{prose(text)}</p></div>"
    )


def swatch(identity: Identity) -> str:
    """The mark of a model: its colour, and its line style as a border."""
    dashes = {"solid": "solid", "dot": "dotted", "dashdot": "dashed", "longdashdot": "double"}
    style = f"border-color:{identity.colour};border-bottom-style:{dashes[identity.dash]}"
    return f'<span class="nl-swatch" style="{escape(style)}" aria-hidden="true"></span>'


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """A list of labels and values."""
    rows = "".join(
        f"<dt>{escape(str(label))}</dt><dd>{escape(str(value))}</dd>" for label, value in pairs
    )
    return f'<dl class="nl-facts">{rows}</dl>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], css: str = "") -> str:
    """A table; headings and cells are HTML that is safe already."""
    head = "".join(f"<th scope='col'>{text}</th>" for text in headings)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="nl-scroll"><table class="nl-table {css}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
