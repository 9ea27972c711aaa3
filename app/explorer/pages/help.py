"""Help: what each number means, from the declarations that the documentation is made from."""

from __future__ import annotations

import re
from html import escape

import streamlit as st

from explorer import markup
from explorer.guard import guarded
from normlens import catalog
from normlens.catalog import Analysis
from normlens.report.numbers import citation_url, prose, unit
from normlens.resources import docs_path
from normlens.results import TableSchema

READING = (
    ("A | B | Δ", "Models stand side by side on one scale; A is the reference. Δ is B − A."),
    ("[low, high]", "A 95 % interval from resampling documents, not tokens. It leaves out what "
     "differs between training runs."),
    ("Bold Δ", "The interval of the paired difference does not contain zero."),
    ("n", "What was counted: tokens, sequences or heads. n = 0 means no data, never zero."),
    ("Not applicable", "The question has no answer for this model, and the page says why. It is "
     "grey in maps, never 0."),
    ("Checks", "Each result tests itself in the run: components add up to the logit, hooked equals "
     "unhooked. A failed check is shown before any number."),
    ("First token", "Kept apart everywhere: its statistics are a case of their own."),
    ("Depth", "Layers by number, or by share of depth where the models differ in depth."),
    ("Copy as Python", "Code that draws the same chart in a notebook."),
)  # fmt: skip
KEYS = (
    ("Ctrl + Enter", "runs the prompt"),
    ("Tab, Shift + Tab", "walk through the controls; every map has select boxes beside it"),
    ("Arrows, Enter", "choose in a select box; typing filters"),
    ("Double click in a chart", "shows all of it again after zooming"),
    ("R", "draws the page again"),
)
WORDS = (
    ("scale", "the denominator of a norm, `sqrt(var + eps)` for LayerNorm: one number a token"),
    ("mu, xhat", "the mean of the input, and the input after centring and division"),
    ("gamma, beta", "gain and bias of a norm"),
    ("live scale", "a scale that the model computes anew for every token"),
    ("fixed scale, scale-free", "the division is by a constant; centring, gain and bias remain"),
    ("would-be scale", "what a fixed-scale norm would divide by if it were live; not applied"),
    ("site", "one norm of a model: layer and role, as `3.pre_attn`"),
    ("residual stream", "what blocks read and add to; its size is in residual units"),
    ("vanilla control", "the same fine-tuning without removal"),
    ("auxiliary control", "the fine-tuning with the scale loss, norms kept"),
    ("lineage", "models of which one was fine-tuned from the other; only then is head 3 head 3"),
    ("direct logit attribution", "what a component writes towards a logit at a frozen final scale"),
    ("self-repair", "what the live final scale takes back when a component is removed"),
    ("attention sink", "a head that puts most of its weight on the first token"),
    ("massive activation", "a residual dimension hundreds of times the median"),
    ("entropy", "of attention or of predictions, in nats"),
)
_LINK = re.compile(r"\]\(analyses/([\w-]+)\.md\)")
_TITLE = re.compile(r"^# .*\n")


def render() -> None:
    """The page."""
    markup.title("Help", "What does each number mean, and when can it be trusted?")
    guarded(_find)
    first, second = st.columns(2)
    with first:
        markup.heading("How to read")
        markup.put(_list(READING))
    with second:
        markup.heading("Words")
        markup.put(_list(WORDS))
        markup.heading("Keyboard")
        markup.put(_list(KEYS))
    markup.heading("Analyses")
    for analysis in catalog.ALL:
        guarded(_analysis, analysis)
    guarded(_gotchas)


def _find() -> None:
    """Every column of every table whose name or meaning holds the words."""
    words = st.text_input(
        "Find a number",
        key="help-find",
        placeholder="kurtosis, sink, share …",
        icon=":material/search:",
        type="search",
        persist_state="session",
    )
    wanted = (words or "").casefold().split()
    if not wanted:
        return
    rows = [
        (escape(analysis.title), *row)
        for analysis in catalog.ALL
        for schema in analysis.tables
        for row in _columns(schema)
        if all(word in f"{analysis.title} {' '.join(row)}".casefold() for word in wanted)
    ]
    if not rows:
        markup.empty("Nothing by that name", "Try a part of the word, or open an analysis below.")
        return
    markup.put(markup.table(("analysis", "column", "unit", "meaning"), rows))


def _analysis(analysis: Analysis) -> None:
    with st.expander(f"**{analysis.title}** · `{analysis.name}`", key=f"help-{analysis.name}"):
        sources = "".join(_source(c.reference, c.identifier, c.place) for c in analysis.citations)
        markup.put(
            f'<div class="nl-explain" id="{escape(analysis.name)}">'
            f"<p><em>{prose(analysis.question)}</em></p><p>{prose(analysis.explanation)}</p></div>"
        )
        for schema in analysis.tables:
            markup.put(
                f'<p class="nl-quiet"><code>{escape(schema.name)}</code> {prose(schema.doc)}</p>'
                + markup.table(("column", "unit", "meaning"), _columns(schema))
            )
        markup.put(f'<div class="nl-explain"><p>Sources</p><ul>{sources}</ul></div>')


def _columns(schema: TableSchema) -> list[tuple[str, str, str]]:
    return [
        (f"<code>{escape(c.name)}</code>", escape(unit(c.unit)), str(prose(c.doc)))
        for c in schema.columns
    ]


def _source(reference: str, identifier: str, place: str) -> str:
    url = citation_url(identifier)
    text = escape(f"{reference}{', ' + place if place else ''}")
    linked = f'<a href="{escape(url)}" target="_blank" rel="noreferrer">{text}</a>'
    return f"<li>{linked if url else text}</li>"


def _list(pairs: tuple[tuple[str, str], ...]) -> str:
    rows = "".join(f"<dt>{prose(name)}</dt><dd>{prose(text)}</dd>" for name, text in pairs)
    return f'<dl class="nl-facts">{rows}</dl>'


def _gotchas() -> None:
    """The documentation's own page; its links lead to the expanders above."""
    text = docs_path("gotchas.md").read_text(encoding="utf-8")
    markup.heading("Gotchas", "What goes wrong when norms are compared?")
    body = _TITLE.sub("", text, count=1).replace("\n## ", "\n#### ")
    st.markdown(_LINK.sub(r"](#\1)", body))
