"""Removal lab: when which scale is frozen, and what the loss does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from explorer import markup, resources, state
from explorer.guard import guarded
from explorer.panel import Csv
from normlens.figures.appearance import dressed
from normlens.figures.removal_plan import removal_plan
from normlens.figures.training import training_curves
from normlens.report.numbers import fixed, number
from normlens.report.standalone import standalone_html
from normlens.workbench.run_code import curves_code, schedule_code
from normlens.workbench.runs import (
    TrainingRun,
    bundled_runs,
    find_runs,
    run_log,
    run_schedule,
)

EVERY_SECONDS = 3.0
MOST_CURVES = 8
MOST_ROWS = 8
KINDS = {"removal": "scales removed", "family": "norm family", "training": "training"}


def render() -> None:
    """The page."""
    markup.title(
        "Removal lab",
        "What happens to the loss while the scales of a model are frozen, one after another?",
    )
    markup.quiet(
        "A removal fine-tunes a model while each norm's division by the token's own scale is "
        "exchanged for a constant, one scale at a time. Its cost is read against a control that "
        "saw the same tokens in the same order and kept its norms."
    )
    runs = _labelled(all_runs())
    live = any(run.state == "running" for run in runs.values())
    st.fragment(_live, run_every=EVERY_SECONDS if live else None)(tuple(runs))
    guarded(_own)


def all_runs() -> tuple[TrainingRun, ...]:
    """The runs of the directory that the explorer was started with, then the bundled ones."""
    root = resources.options().runs
    return (*(find_runs([root]) if root is not None else ()), *bundled_runs())


def _labelled(runs: Sequence[TrainingRun]) -> dict[str, TrainingRun]:
    """Runs by the names they are shown under."""
    return {f"{run.name} (bundled)" if run.bundled else run.name: run for run in runs}


def _live(labels: tuple[str, ...]) -> None:
    """What changes while a run goes on; read anew at every tick."""
    runs = {k: run for k, run in _labelled(all_runs()).items() if k in labels}
    guarded(_overview, runs)
    guarded(_schedule, {label: run for label, run in runs.items() if run.removes})
    guarded(_curves, {k: run for k, run in runs.items() if run.state != "unreadable"})


def _overview(runs: Mapping[str, TrainingRun]) -> None:
    markup.heading("Runs")
    rows = [
        (
            escape(label),
            escape(KINDS[run.kind]),
            f'<span class="{_tone(run)}">{escape(run.state)}</span>',
            _steps(run),
            fixed(run.held_out_loss, 4),
            "–" if run.bundled else escape(_ago(time.time() - run.updated)),
        )
        for label, run in runs.items()
    ]
    heads = ("run", "what", "state", "step", "held-out loss [nats/token]", "last heard of")
    markup.put(markup.table(heads, rows[:MOST_ROWS]))
    if len(rows) > MOST_ROWS:
        with st.expander(f"{len(rows) - MOST_ROWS} more runs", key="removal-more"):
            markup.put(markup.table(heads, rows[MOST_ROWS:]))
    for label, run in runs.items():
        if run.remark:
            markup.note(f"{label}: {run.remark}", "warning")


def _schedule(runs: Mapping[str, TrainingRun]) -> None:
    markup.heading("Schedule", "Which scale becomes a constant at which step?")
    if not runs:
        markup.empty("No removal yet", "A run of `normlens remove-norm` appears here.")
        return
    label = _choose(list(runs))
    run = runs[label]
    schedule = run_schedule(run)
    if schedule is None or schedule.freezes.empty:
        markup.empty("Nothing frozen yet", f"{label} has not frozen a scale so far.")
        return
    title = f"Removal schedule of {label}"
    last = int(schedule.freezes["step"].max())
    known = "" if run.record else " Its version recorded no names of scales and no plan."
    note = f"{len(schedule.freezes):,} scales, the last frozen at step {last:,}.{known}"
    figure = removal_plan(schedule.freezes, schedule.steps, title=title, note=note)
    if run.state in ("running", "stopped"):
        figure.add_vline(x=run.step, line={"dash": "dot", "width": 1.4})
    tables = {"freezes": schedule.freezes, "steps": schedule.steps}
    _panel("schedule", figure, title, tables, schedule_code(run, title))


def _choose(labels: list[str]) -> str:
    key = "removal-run"
    if st.session_state.get(key) not in labels:
        st.session_state[key] = labels[0]
    return st.selectbox("Run", labels, key=key, persist_state="session", width=420)


def _curves(runs: Mapping[str, TrainingRun]) -> None:
    markup.heading("Training curves", "What does the loss do at each frozen scale?")
    key = "removal-curves"
    if key not in st.session_state:
        st.session_state[key] = _first_curves(runs)
    st.session_state[key] = [label for label in st.session_state[key] if label in runs]
    chosen = st.multiselect(
        "Runs", list(runs), key=key, max_selections=MOST_CURVES, persist_state="session"
    )
    if not chosen:
        markup.empty("No run chosen", "Choose runs above; the first ones are compared at once.")
        return
    logs = {label: _log(*_version(runs[label]), runs[label]) for label in chosen}
    title = "Training curves of " + ", ".join(chosen)
    code = curves_code({label: runs[label] for label in chosen})
    _panel("curves", training_curves(logs), title, logs, code)


def _first_curves(runs: Mapping[str, TrainingRun]) -> list[str]:
    """What is going on now, else the bundled fine-tunes, which saw the same tokens."""
    going = [label for label, run in runs.items() if run.state == "running"]
    tuned = [
        label
        for label, run in runs.items()
        if run.bundled and run.record is not None and run.record.recipe.ancestor
    ]
    return (going or tuned)[:MOST_CURVES]


@st.cache_data(show_spinner=False, max_entries=64)
def _log(directory: str, step: int, updated: float, _run: TrainingRun) -> pd.DataFrame:
    """A log, read again once it has grown."""
    return run_log(_run)


def _version(run: TrainingRun) -> tuple[str, int, float]:
    return str(run.directory), run.step, run.updated


def _panel(
    key: str, figure: go.Figure, title: str, tables: Mapping[str, pd.DataFrame], code: str
) -> None:
    with st.container(border=True, key=f"panel-{key}"):
        shown = dressed(figure, dark=state.dark())
        st.plotly_chart(shown, theme=None, key=f"chart-{key}", alt=title, config=_CONFIG)
        with st.container(horizontal=True, gap="small", key=f"toolbar-{key}"):
            with st.popover("Save", icon=":material/download:", type="tertiary"):
                _downloads(key, figure, title, tables)
            with st.popover("Python", icon=":material/code:", type="tertiary"):
                st.code(code, language="python", wrap_lines=True)


_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
}


def _downloads(key: str, figure: go.Figure, title: str, tables: Mapping[str, pd.DataFrame]) -> None:
    st.download_button(
        "Chart as HTML, works offline",
        data=lambda: standalone_html(figure, title),
        file_name=f"{key}.html",
        mime="text/html",
        key=f"html-{key}",
        on_click="ignore",
        icon=":material/draft:",
        width="stretch",
    )
    for name, table in tables.items():
        st.download_button(
            f"{Path(name).name}.csv",
            data=Csv(table),
            file_name=f"{key}-{Path(name).name}.csv",
            mime="text/csv",
            key=f"csv-{key}-{name}",
            on_click="ignore",
            icon=":material/table:",
            width="stretch",
        )


def _own() -> None:
    """How to make one, with the session's first model."""
    model = state.view().slots[0].source
    name = Path(model).name
    markup.heading("Remove the norms of your own model")
    markup.quiet("What it would freeze, and when; nothing is trained:")
    st.code(f"normlens remove-norm {model} --plan", language="shell")
    markup.quiet("What it would cost, then the run and its control, on the same text:")
    st.code(
        f"normlens remove-norm {model} --text TEXT.txt --dry-run\n"
        f"normlens remove-norm {model} --text TEXT.txt --out runs/{name}-lnfree\n"
        f"normlens remove-norm {model} --text TEXT.txt --control vanilla "
        f"--out runs/{name}-control",
        language="shell",
    )
    markup.quiet("Watch them here while they train:")
    st.code(f"normlens app {model} --runs runs", language="shell")
    if resources.options().runs is None:
        markup.note(
            "This explorer was started without `--runs`, so it shows the bundled models' training."
        )


def _tone(run: TrainingRun) -> str:
    tones = {"running": "nl-good-text", "diverged": "nl-bad-text", "unreadable": "nl-bad-text"}
    return tones.get(run.state, "")


def _steps(run: TrainingRun) -> str:
    total = "" if run.steps is None else f" of {number(run.steps)}"
    return f"{number(run.step)}{total}"


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"
