"""Opens the session's models in the background once a reader is about to need them.

Importing torch and reading weights takes seconds, which a reader spends typing. Nothing here
runs before a page that needs a model is opened: stored results need none.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

import streamlit as st

from explorer import resources, state
from normlens.errors import NormlensError
from normlens.workbench.choices import ModelChoice

LOG = logging.getLogger("normlens.explorer")


@dataclass(frozen=True)
class Opening:
    """Opens models one after another."""

    choices: tuple[ModelChoice, ...]

    def __call__(self) -> None:
        """Open what can be opened; whoever needs a model that cannot be is told then."""
        for choice in self.choices:
            try:
                resources.opened([choice])
            except NormlensError as error:
                LOG.info("%s was not opened ahead: %s", choice.name, error)


def start() -> None:
    """Begin, once for a choice of models."""
    slots = state.view().slots
    _start(repr(slots), Opening(slots))


@st.cache_resource(show_spinner=False, max_entries=16)
def _start(key: str, _opening: Opening) -> bool:
    del key
    threading.Thread(target=_opening, name="normlens-open", daemon=True).start()
    return True
