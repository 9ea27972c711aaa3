"""The pages, and links between them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from explorer.guard import guarded

TOPICS = {
    "norms": ("Norms", "straighten"),
    "attention": ("Attention", "blur_on"),
    "outliers": ("Outliers", "scatter_plot"),
    "attribution": ("Attribution", "account_tree"),
    "depth": ("Depth", "layers"),
    "output": ("Output", "output"),
}
"""Pages that show the analyses of a topic: title and icon."""


@dataclass(frozen=True)
class PageOf:
    """A page: a module of ``explorer.pages`` and what its ``render`` is called with.

    The module is imported when the page is opened, so that the first page comes early.
    """

    module: str
    argument: str = ""

    def __call__(self) -> None:
        """Draw the page."""
        guarded(self._render)

    def _render(self) -> None:
        module = importlib.import_module(f"explorer.pages.{self.module}")
        module.render(*([self.argument] if self.argument else []))


def pages() -> Mapping[str, list[Any]]:
    """The navigation: sections and their pages."""
    topics = [_page(title, icon, "topic", topic) for topic, (title, icon) in TOPICS.items()]
    return {
        "": [
            _page("Overview", "dashboard", "overview", default=True),
            _page("Models", "deployed_code", "models"),
            _page("Text", "notes", "text"),
        ],
        "Compare": [*topics, _page("More analyses", "more_horiz", "generic")],
        "Work": [
            _page("Removal lab", "science", "removal"),
            _page("Reports", "description", "reports"),
            _page("Help", "help", "help"),
        ],
    }


def link(title: str, label: str = "") -> None:
    """A link to a page by its title; outside the app, as in a test of one page, nothing."""
    for section in pages().values():
        for page in section:
            if page.title == title:
                st.page_link(page, label=label or title, icon=page.icon)


def topic_title(topic: str) -> str:
    """The page that shows a topic."""
    return TOPICS[topic][0] if topic in TOPICS else "More analyses"


def _page(title: str, icon: str, module: str, argument: str = "", **more: Any) -> Any:
    return st.Page(
        PageOf(module, argument),
        title=title,
        icon=f":material/{icon}:",
        url_path=title.lower().replace(" ", "-"),
        **more,
    )
