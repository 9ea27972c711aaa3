"""The first page: who is compared, what differs most, every headline number."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd
import streamlit as st

from explorer import headline, job_view, markup, missing, navigation, panel, resources, sidebar
from explorer.guard import guarded
from explorer.resources import Shown
from explorer.tables import plain_numbers
from normlens import catalog
from normlens.comparison import (
    caveats,
    compare_headlines,
    models_of,
    provenance_of,
    relations,
)
from normlens.comparison.ranking import ranked_differences
from normlens.report.building import check_rows, model_view
from normlens.report.export import csv_bytes
from normlens.report.numbers import number
from normlens.results import Result

GLANCE = (
    ("output", "output:loss"),
    ("scale", "scale:by_site"),
    ("attention-entropy", "attention_entropy:entropy_map"),
    ("outliers", "outliers:magnitude"),
)
"""Figures that show at a glance what the models are."""

MOST_RANKED = 12


def render() -> None:
    """Draw the page."""
    markup.title("Overview", "What differs between these models, and can the numbers be trusted?")
    corpus = [analysis.name for analysis in catalog.ALL if analysis.runs_on == "corpus"]
    found = [item for name in corpus if (item := guarded(resources.shown, name)) is not None]
    results = [item.result for item in found if item.result is not None]
    guarded(_missing, found)
    if not results:
        return
    guarded(_trust, results)
    guarded(_glance, found)
    guarded(_ranked, found)
    guarded(_headlines, found)
    guarded(_models, results)
    guarded(_checks, results)
    guarded(_provenance, results)


def _missing(found: Sequence[Shown]) -> None:
    lacking = [item for item in found if item.missing]
    if not lacking:
        return
    active = next((item for item in lacking if job_view.running(item.analysis)), None)
    if active is not None:
        job_view.progress(active.analysis)
        return
    names = ", ".join(dict.fromkeys(c.name for item in lacking for c in item.missing))
    titles = ", ".join(catalog.get(item.analysis).title for item in lacking)
    markup.empty(
        f"{len(lacking)} of {len(found)} analyses are not computed yet",
        f"For {names} on {sidebar.text_in_words()}: {titles}. Those that read the same forward "
        "passes share them; results are kept.",
    )
    missing.button([item.analysis for item in lacking], "compute-overview", "Compute them")
    job_view.outcome(lacking[0].analysis)


def _trust(results: Sequence[Result]) -> None:
    rows = check_rows(results, models_of(results))
    made = sum(check is not None for row in rows for check in row.by_model.values())
    failed = [row for row in rows if not row.passed]
    if failed:
        names = ", ".join(f"{row.analysis}: {row.name}" for row in failed)
        markup.note(f"Checks failed: {names}. Their numbers cannot be trusted.", "error")
    else:
        markup.note(f"All {made} self-checks of these runs passed.", "good")
    models, origin = models_of(results), provenance_of(results)
    for relation in relations(models, origin):
        kin = "related" if relation.related else "not related; heads and layers do not correspond"
        markup.note(
            f"Lineage: {relation.model} and {relation.other} are {kin} (weight cosine "
            f"{number(relation.cosine)})."
        )
    traps = caveats(results)
    for caveat in (c for c in traps if c.serious):
        markup.note(caveat.text, "warning")
    limits = [caveat for caveat in traps if not caveat.serious]
    if limits:
        with st.expander(f"Limits of such a comparison ({len(limits)})"):
            for caveat in limits:
                markup.note(caveat.text)


def _glance(found: Sequence[Shown]) -> None:
    by_name = {item.analysis: item for item in found if item.result is not None}
    shown = [(by_name[a], figure) for a, figure in GLANCE if a in by_name]
    if not shown:
        return
    markup.heading("At a glance")
    panel.grid(shown, more=_more)


def _more(analysis: str) -> None:
    title = navigation.topic_title(catalog.get(analysis).topic)
    navigation.link(title, f"More on {title.lower()}")


def _ranked(found: Sequence[Shown]) -> None:
    shown = [item for item in found if item.result is not None]
    frame = ranking("|".join(item.digest for item in shown), shown)
    if not len(frame):
        return
    markup.heading("What differs most", "Differences from the reference, clear ones first.")
    rows = [
        [
            f"{escape(str(row['headline']).replace('_', ' '))}"
            f"<span class='nl-unit'>{escape(str(row['title']))}</span>",
            escape(str(row["words"])),
            "" if math.isnan(row["score"]) else f"{number(row['score'])}×",
        ]
        for row in frame.head(MOST_RANKED).to_dict("records")
    ]
    headings = ["number", "difference with its 95 % interval", "Δ / half interval"]
    markup.put(markup.table(headings, rows))
    if len(frame) > MOST_RANKED:
        with st.expander(f"All {len(frame)} differences"):
            st.dataframe(frame, hide_index=True, column_config=plain_numbers(frame))


@st.cache_data(show_spinner=False, max_entries=16)
def ranking(digest: str, _shown: Sequence[Shown]) -> pd.DataFrame:
    """The ranked differences of results; a digest names them."""
    del digest
    return ranked_differences([item.result for item in _shown if item.result is not None])


@dataclass(frozen=True)
class Headlines:
    """The headline table as CSV, made when it is asked for."""

    results: Sequence[Result]

    def __call__(self) -> bytes:
        """The bytes."""
        return csv_bytes(compare_headlines(self.results))


def _headlines(found: Sequence[Shown]) -> None:
    markup.heading("Headline numbers")
    headline.show(found, grouped=True)
    st.download_button(
        "headlines.csv",
        data=Headlines([item.result for item in found if item.result is not None]),
        file_name="normlens-headlines.csv",
        mime="text/csv",
        key="headlines-csv",
        on_click="ignore",
        icon=":material/download:",
    )


def _models(results: Sequence[Result]) -> None:
    markup.heading("Models")
    models, origin = models_of(results), provenance_of(results)
    looks = sidebar.looks()
    for column, model in zip(st.columns(len(models)), models, strict=True):
        view = model_view(looks[model], origin[model])
        with column, st.container(border=True):
            facts = [*view.facts, ("norms", view.site_summary)]
            verdict = "every site verified" if view.all_verified else "some sites not verified"
            markup.put(
                f"<p>{markup.swatch(looks[model])}<b>{escape(model)}</b></p>"
                + markup.facts([*facts, ("verification", verdict)])
            )


def _checks(results: Sequence[Result]) -> None:
    models = models_of(results)
    rows = check_rows(results, models)
    with st.expander(f"Checks ({len(rows)})", icon=":material/rule:"):
        body = []
        for row in rows:
            cells = []
            for model in models:
                check = row.by_model.get(model)
                if check is None:
                    cells.append('<span class="nl-none">not made</span>')
                    continue
                tone, mark = ("nl-good-text", "✓") if check.passed else ("nl-bad-text", "✕")
                cells.append(
                    f'<span class="{tone}">{mark}</span> {number(check.value)}'
                    f'<span class="nl-n">at most {number(check.tolerance)}</span>'
                )
            name = f'{escape(row.name)}<span class="nl-doc">{escape(row.doc)}</span>'
            body.append([escape(row.analysis), name, *cells])
        markup.put(markup.table(["analysis", "check", *map(escape, models)], body))


def _provenance(results: Sequence[Result]) -> None:
    with st.expander("Provenance", icon=":material/fingerprint:"):
        for model, origin in provenance_of(results).items():
            plain = {key: value for key, value in origin.items() if key != "sites"}
            markup.quiet(model)
            st.code(json.dumps(plain, indent=2, default=str), language="json")
