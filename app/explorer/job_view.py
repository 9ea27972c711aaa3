"""Jobs of this session: which analyses they fill, their progress, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from explorer import markup, resources
from explorer.guard import guarded
from normlens.workbench import jobs
from normlens.workbench.jobs import Job, JobStatus

_JOBS = "jobs"
EVERY_SECONDS = 1.0


def remember(job: Job, names: Sequence[str]) -> None:
    """Note which analyses a job fills."""
    st.session_state[_JOBS] = _known() | dict.fromkeys(names, job)


def running(analysis: str) -> bool:
    """Whether a job of this session computes the analysis right now."""
    job = _known().get(analysis)
    return job is not None and jobs.status(job).state == "running"


def outcome(analysis: str) -> None:
    """How the last job for an analysis ended, where it did not succeed."""
    job = _known().get(analysis)
    if job is None:
        return
    status = jobs.status(job)
    if status.state == "failed":
        markup.note(status.message or "The run failed; its log says why.", "error")
        with st.expander("Log"):
            st.code(status.log, language=None, wrap_lines=True)
    elif status.state == "cancelled":
        markup.note("Cancelled. Finished parts are kept: the next run goes on from there.")


@st.fragment(run_every=EVERY_SECONDS)
def progress(analysis: str) -> None:
    """Progress of the job of an analysis; the page is drawn again once it has ended."""
    job = _known().get(analysis)
    if job is None:
        return
    status = jobs.status(job)
    if status.state != "running":
        st.rerun(scope="app")
    guarded(_progress, analysis, job, status)


def _progress(analysis: str, job: Job, status: JobStatus) -> None:
    st.progress(_share(status), text=_words(status))
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Cancel", key=f"cancel-{analysis}", icon=":material/stop_circle:"):
            with st.spinner("Ending the run …"):
                jobs.cancel(job)
            st.rerun(scope="app")
        with st.popover("Command line", type="tertiary", icon=":material/terminal:"):
            st.code(job.command, language="shell", wrap_lines=True)


def _share(status: JobStatus) -> float:
    return min(1.0, status.done / status.total) if status.total else 0.0


def _words(status: JobStatus) -> str:
    """Progress as text that Markdown leaves alone."""
    parts = [status.step or "Starting", f"{status.done} of {status.total}" if status.total else ""]
    words = " · ".join(part for part in [status.model, *parts, f"{status.seconds:.0f} s"] if part)
    return "".join("\\" + c if c in r"\`*_{}[]()<>#+-.!|$~:" else c for c in words)


def all_jobs() -> tuple[Job, ...]:
    """Recent jobs of the store, those of earlier servers too."""
    return tuple(jobs.jobs(resources.options().store))


def _known() -> dict[str, Job]:
    return st.session_state.get(_JOBS, {})
