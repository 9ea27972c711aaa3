"""The frame around every page: looks, navigation, the view, and the guard."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from explorer import sidebar, state
from explorer.guard import guarded
from explorer.navigation import pages

STYLE = Path(__file__).parent / "style.css"


def show() -> None:
    """Draw the page that is asked for."""
    # Without an icon of its own, a page takes its navigation icon from a font server.
    st.set_page_config(
        page_title="normlens", page_icon="📏", layout="wide", initial_sidebar_state="auto"
    )
    st.html(STYLE)
    chosen = st.navigation(pages(), expanded=True)
    if guarded(_begin) is None:
        return
    guarded(sidebar.show)
    chosen.run()
    state.finish()


def _begin() -> bool:
    state.begin()
    return True
