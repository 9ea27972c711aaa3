"""Importing torch before someone waits for it."""

from __future__ import annotations

import importlib
import threading

HEAVY = ("normlens.models.recorded", "normlens.runner", "normlens.side_by_side")
"""What opening a model and running a prompt import; some seconds together."""


def warm_up() -> threading.Thread:
    """Import the frameworks in the background and return the thread that does.

    Call it once a first page is drawn: until it is done it takes its share of the processor.
    Whoever needs the frameworks earlier waits for the same import, not for a second one.
    """
    thread = threading.Thread(target=_import_all, name="warm up", daemon=True)
    thread.start()
    return thread


def _import_all() -> None:
    for name in HEAVY:
        importlib.import_module(name)
