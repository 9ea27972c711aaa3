"""What all sessions share: the stored results, and the models that are open."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from explorer import state
from explorer.options import read_options
from normlens import catalog, figures
from normlens.errors import UsageError
from normlens.figures.appearance import dressed, relative_depth
from normlens.figures.selecting import Selection, clickable, mark
from normlens.results import Result
from normlens.workbench.choices import BosChoice, ModelChoice
from normlens.workbench.launch import Launch
from normlens.workbench.pool import ModelPool
from normlens.workbench.sources import Sources
from normlens.workbench.stored import StoredResults

MOST_FIGURES = 256


@dataclass(frozen=True)
class Shown:
    """A stored result as pages use it.

    Attributes:
        analysis: registry name.
        result: models side by side, in slot order; None where no model has one.
        missing: models without a stored result.
        digest: changes whenever the numbers may.
    """

    analysis: str
    result: Result | None
    missing: tuple[ModelChoice, ...]
    digest: str


def options() -> Launch:
    """What the server was started with."""
    return read_options()


def sources() -> Sources:
    """Which models may be opened."""
    return options().sources


def pool() -> ModelPool:
    """The open models, shared by all sessions; a lock in it guards each."""
    return _pool(str(options().store))


def opened(choices: Sequence[ModelChoice]) -> ModelPool:
    """The pool with these models open.

    Raises:
        NormlensError: a model cannot be opened.
    """
    for choice in dict.fromkeys(choices):
        pool().open(choice, sources())
    return pool()


def stored() -> StoredResults:
    """The user's store, and behind it the results that are shipped."""
    launch = options()
    return _stored(tuple(str(root) for root in launch.roots), launch)


@st.cache_resource(show_spinner=False, max_entries=4)
def _pool(store: str) -> ModelPool:
    return ModelPool(store=Path(store))


@st.cache_resource(show_spinner=False, max_entries=8)
def _stored(roots: tuple[str, ...], _launch: Launch) -> StoredResults:
    return StoredResults([Path(root) for root in roots], _launch.sources)


def shown(
    analysis: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    bos: BosChoice = "prepend",
) -> Shown:
    """The stored result of an analysis for the session's models and text.

    Args:
        analysis: registry name.
        parameters: None for those the session has chosen, else the defaults.
        bos: BOS policy of a prompt; a corpus has its own.
    """
    view = state.view()
    corpus = None if catalog.get(analysis).runs_on == "prompt" else view.corpus
    chosen = parameters if parameters is not None else state.parameters(analysis)
    # Never cached: whether a model or a text is still what was read shows in its files alone.
    found = stored().find(analysis, view.slots, corpus, parameters=chosen, bos=bos)
    return as_shown(analysis, found.result, found.missing)


def as_shown(analysis: str, result: Result | None, missing: Sequence[ModelChoice] = ()) -> Shown:
    """A result and what names its numbers."""
    origin = "" if result is None else json.dumps(dict(result.provenance), default=str)
    digest = hashlib.sha256(f"{analysis}|{origin}".encode()).hexdigest()[:24]
    return Shown(analysis, result, tuple(missing), digest)


def figure(what: Shown, name: str) -> go.Figure:
    """A figure of a result with the selection marked, dressed for the reader's theme.

    All sessions share it: whoever wants to change it makes a copy.
    """
    if what.result is None:
        raise UsageError(f"{what.analysis} has no result to draw; compute it first")
    view = state.view()
    marks = json.dumps(asdict(view.selection))
    relative = view.depth == "relative"
    return _figure(what.digest, name, state.dark(), relative, marks, what.result, view.selection)


@st.cache_resource(show_spinner=False, max_entries=MOST_FIGURES)
def _figure(
    digest: str,
    name: str,
    dark: bool,
    relative: bool,
    marks: str,
    _result: Result,
    _selection: Selection,
) -> go.Figure:
    del marks
    # Marks need a figure's own coordinates, which dressing may have packed.
    part = followed(name, _selection)
    drawn = _clickable(digest, name, relative, tuple(part.items()), _result)
    return dressed(mark(drawn, _selection), dark=dark)


@st.cache_resource(show_spinner=False, max_entries=MOST_FIGURES)
def _clickable(
    digest: str, name: str, relative: bool, part: tuple[tuple[str, int | str], ...], _result: Result
) -> go.Figure:
    drawn = clickable(figures.draw(_result, name, **dict(part)))
    return relative_depth(drawn, layers_of(_result)) or drawn if relative else drawn


def followed(name: str, selection: Selection) -> dict[str, int | str]:
    """What of a selection a figure draws, as arguments of ``figures.draw``."""
    taken = figures.followed(name)
    return {field: value for field, value in selection.chosen.items() if field in taken}


def layers_of(result: Result) -> dict[str, int]:
    """Number of blocks of each model, as its sites are labelled (``3.pre_attn``)."""
    found = {}
    for model, origin in result.provenance.items():
        labels = [str(site["label"]).partition(".")[0] for site in origin.get("sites") or ()]
        numbers = [int(label) for label in labels if label.isdigit()]
        found[model] = max(numbers, default=-1) + 1
    return found
