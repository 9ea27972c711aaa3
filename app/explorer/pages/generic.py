"""Every analysis of the registry: those of no topic first, and any other by its name."""

from __future__ import annotations

import streamlit as st

from explorer import markup
from explorer.pages import topic
from normlens import catalog

_KEY = "generic-analysis"


def render() -> None:
    """Draw the page."""
    markup.title("More analyses", topic.QUESTIONS["other"])
    others = [analysis for analysis in catalog.ALL if analysis.topic == "other"]
    names = [analysis.name for analysis in (*others, *catalog.ALL)]
    name = st.selectbox(
        "Analysis",
        list(dict.fromkeys(names)),
        key=_KEY,
        persist_state="session",
        format_func=lambda n: f"{catalog.get(n).title} ({n})",
    )
    if name:
        topic.show([catalog.get(name)], "other")
