"""What stands where a result is missing: what would be computed, for what, and the button."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from explorer import job_view, markup, resources, sidebar, state
from explorer.resources import Shown
from explorer.view import corpus_text
from normlens import catalog
from normlens.catalog import Analysis
from normlens.catalog.declaration import Extent
from normlens.workbench import jobs
from normlens.workbench.choices import ModelChoice


def show(shown: Shown) -> None:
    """The empty state of one analysis, or the progress of the job that fills it."""
    if job_view.running(shown.analysis):
        job_view.progress(shown.analysis)
        return
    declared = catalog.get(shown.analysis)
    names = ", ".join(choice.name for choice in shown.missing)
    markup.empty(
        f"Not computed yet for {names}",
        f"{cost(declared, shown.missing)} It runs in a process of its own, can be cancelled, and "
        "goes on where it stopped.",
    )
    button([shown.analysis], f"compute-{shown.analysis}", "Compute")
    job_view.outcome(shown.analysis)


def button(names: Sequence[str], key: str, label: str) -> None:
    """Starts a job for analyses on all models; what is stored already is not run again."""
    if st.button(label, key=key, type="primary", icon=":material/play_arrow:"):
        start(names)
        st.rerun()


def start(names: Sequence[str]) -> None:
    """Start the job.

    Raises:
        NormlensError: a model or a text is not there.
    """
    view = state.view()
    chosen = {name: found for name in names if (found := state.parameters(name)) is not None}
    job = jobs.start(
        tuple(names),
        view.slots,
        view.corpus,
        parameters=chosen,
        store=resources.options().store,
        sources=resources.sources(),
    )
    job_view.remember(job, names)


def cost(declared: Analysis, models: Sequence[ModelChoice]) -> str:
    """What a run reads, in words, and how many forward passes the analysis declares."""
    corpus = state.view().corpus
    text = "all sequences" if not corpus.sequences else f"{corpus.sequences:,} sequences"
    count = "one model" if len(models) == 1 else f"{len(models)} models"
    if declared.style == "streaming":
        return (
            f"One pass over {text} of {corpus_text(corpus)} for {count}; analyses that are "
            "computed together share it."
        )
    return (
        f"Passes of its own with interventions over {text} of {corpus_text(corpus)} for "
        f"{count}{_passes(declared, models)}."
    )


def _passes(declared: Analysis, models: Sequence[ModelChoice]) -> str:
    """The number of passes, where the number of norms is known from an earlier run."""
    sequences = state.view().corpus.sequences
    known = sidebar.provenance()
    sites: list[Any] = [known.get(choice.name, {}).get("sites") for choice in models]
    if not sequences or not all(sites):
        return ": several times the cost of a plain pass"
    chosen = declared.parameters(**dict(state.parameters(declared.name) or {}))
    total = sum(
        declared.forwards(chosen, Extent(sequences, sum(s["fixed_scale"] is None for s in of)))
        for of in sites
    )
    return f": about {round(total):,} forward passes of one sequence"
