"""A page that shows every analysis of one topic, as the registry has them."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from explorer import (
    job_view,
    markup,
    missing,
    prompt_view,
    resources,
    section,
    selection_bar,
    state,
)
from explorer.navigation import topic_title
from normlens import catalog
from normlens.catalog import Analysis

QUESTIONS = {
    "norms": "What do the norms divide by, and what happens where they no longer do?",
    "attention": "Where does attention go: heads, entropy, sinks?",
    "outliers": "Which dimensions and tokens are far larger than the others, and do they matter?",
    "attribution": "Which components write a prediction, and is the direct account exact?",
    "depth": "How do the residual stream and its gradients grow from layer to layer?",
    "output": "How well do the models predict, how sure are they, and where do they part?",
    "other": "Every further analysis of the registry.",
}


def render(topic: str) -> None:
    """Draw the page of a topic."""
    markup.title(topic_title(topic), QUESTIONS[topic])
    show([analysis for analysis in catalog.ALL if analysis.topic == topic], topic)


def show(analyses: Sequence[Analysis], topic: str) -> None:
    """One analysis at a time, chosen by name, under the selection that all share."""
    if not analyses:
        markup.empty("Nothing here yet", "An analysis of this topic appears here by itself.")
        return
    chosen = _chosen(analyses, topic)
    of_corpus = [a.name for a in analyses if a.runs_on == "corpus"]
    found = [resources.shown(name) for name in of_corpus]
    found += [prompt_view.stored(a.name) for a in analyses if a.runs_on == "prompt"]
    selection_bar.show(found)
    lacking = [
        item.analysis
        for item in found
        if item.missing and item.analysis in of_corpus and not job_view.running(item.analysis)
    ]
    if len(lacking) > 1:
        missing.button(lacking, f"compute-all-{topic}", f"Compute all {len(lacking)} of this page")
    if chosen.runs_on == "prompt":
        prompt_view.show(chosen)
    else:
        section.show(chosen.name)


def _chosen(analyses: Sequence[Analysis], topic: str) -> Analysis:
    by_name = {analysis.name: analysis for analysis in analyses}
    focus = state.view().focus
    name = focus if focus in by_name else analyses[0].name
    if len(analyses) > 1:
        key = f"analysis-{topic}"
        st.session_state[key] = name
        st.segmented_control(
            "Analysis",
            list(by_name),
            key=key,
            format_func=lambda n: by_name[n].title,
            required=True,
            on_change=_keep,
            args=(key,),
            label_visibility="collapsed",
        )
    return by_name[name]


def _keep(key: str) -> None:
    state.change(focus=st.session_state[key])
