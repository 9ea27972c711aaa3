"""The headline table: value, interval, n and Δ of every model, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import streamlit as st

from explorer import markup
from explorer.resources import Shown
from normlens.comparison import models_of, provenance_of
from normlens.figures.theme import Identity, identities
from normlens.report import numbers
from normlens.report.building import headline_groups
from normlens.report.view import HeadlineGroup, HeadlineView
from normlens.results import Headline

REMARK = (
    "Values with their 95 % interval; Δ is the difference from the first model with the interval "
    "of paired documents. Bold differences are clear of zero."
)


def show(shown: Sequence[Shown], *, grouped: bool = False) -> None:
    """The headline numbers of results; with ``grouped`` under the title of each analysis."""
    found = [item for item in shown if item.result is not None]
    body = _html("|".join(item.digest for item in found), grouped, found)
    if body:
        markup.put(body)
        if len(models_of([item.result for item in found if item.result is not None])) > 1:
            markup.quiet(REMARK)


@st.cache_data(show_spinner=False, max_entries=256)
def _html(digest: str, grouped: bool, _shown: Sequence[Shown]) -> str:
    del digest
    results = [item.result for item in _shown if item.result is not None]
    groups = headline_groups(results)
    models = models_of(results)
    looks = identities(models, provenance_of(results))
    return _table(groups, models, looks, grouped) if groups else ""


def _table(
    groups: Sequence[HeadlineGroup],
    models: Sequence[str],
    looks: Mapping[str, Identity],
    grouped: bool,
) -> str:
    headings = ["number", *(markup.swatch(looks[m]) + escape(m) for m in models)]
    parts: list[str] = []
    for group in groups:
        if grouped:
            parts.append(
                f'<tr class="nl-group"><td colspan="{len(models) + 1}">{escape(group.title)}'
                f' <span class="nl-quiet">{escape(group.anchor)}</span></td></tr>'
            )
        parts.extend(_row(shown, models) for shown in group.rows)
    head = "".join(f'<th scope="col">{text}</th>' for text in headings)
    return (
        f'<div class="nl-scroll{" nl-tall" if grouped else ""}">'
        '<table class="nl-table nl-headlines"><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(parts)}</tbody></table></div>"
    )


def _row(shown: HeadlineView, models: Sequence[str]) -> str:
    row = shown.row
    unit = numbers.unit(row.unit)
    beside = f' <span class="nl-n">{escape(unit)}</span>' if unit else ""
    name = (
        f'<td class="nl-name">{escape(row.name.replace("_", " "))}{beside}'
        f'<span class="nl-doc">{numbers.prose(row.doc)}</span></td>'
    )
    return "<tr>" + name + "".join(_cell(shown, model) for model in models) + "</tr>"


def _cell(shown: HeadlineView, model: str) -> str:
    row, places = shown.row, shown.places
    found = row.values.get(model)
    if found is None:
        return '<td><span class="nl-none">not applicable</span></td>'
    if found.n == 0:
        return '<td><span class="nl-none">no data</span></td>'
    parts = [f'<span class="nl-value">{numbers.fixed(found.value, places)}</span>']
    span = numbers.interval(found.low, found.high, places)
    if span:
        parts.append(f'<span class="nl-interval">{span}</span>')
    below = f'{_delta(shown, model)}<span class="nl-n">{_count(found, row.doc)}</span>'
    return f'<td>{"".join(parts)}<span class="nl-line">{below}</span></td>'


def _delta(shown: HeadlineView, model: str) -> str:
    delta = shown.row.differences.get(model)
    if delta is None:
        return ""
    if delta.value != delta.value:
        return f'<span class="nl-none">no Δ: {escape(delta.reason)}</span>'
    clear = " nl-clear" if delta.clear else ""
    span = numbers.interval(delta.low, delta.high, shown.places, sign=True)
    value = numbers.fixed(delta.value, shown.places, sign=True)
    return f'<span class="nl-delta{clear}">Δ {value} {span}</span>'


def _count(found: Headline, usual: str) -> str:
    count = f"n = {numbers.number(found.n)}"
    return count if found.doc == usual else f"{count}; {escape(found.doc)}"
