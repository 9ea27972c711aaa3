"""Reports: the page that the command line writes, from what is stored, to read and to send."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from explorer import markup, navigation, prompt_view, resources, state
from explorer.guard import guarded
from explorer.resources import Shown
from normlens import catalog
from normlens.errors import NotApplicable
from normlens.results import Result
from normlens.workbench.reports import (
    BuiltReport,
    build_report,
    built_reports,
    default_title,
    report_command,
    report_config,
    report_directory,
)

PAGE_HEIGHT = 900
_OPEN = "report-open"


def render() -> None:
    """The page."""
    markup.title("Reports", "What can be sent to a colleague who has none of this?")
    markup.quiet(
        "One self-contained page with every number, check, warning and figure, and beside it the "
        "tables, figures and provenance as files. It is the page that `normlens compare` writes."
    )
    found = _found()
    ready = {item.analysis: item.result for item in found if _whole(item)}
    guarded(_build, ready, [item for item in found if item.missing])
    guarded(_open)


def _found() -> list[Shown]:
    """What is stored for the session's models, text and prompt, in the registry's order."""
    return [
        resources.shown(analysis.name)
        if analysis.runs_on == "corpus"
        else prompt_view.stored(analysis.name)
        for analysis in catalog.ALL
    ]


def _whole(item: Shown) -> bool:
    return item.result is not None and not item.missing


def _build(ready: dict[str, Result], lacking: Sequence[Shown]) -> None:
    markup.heading("Build")
    if lacking:
        names = ", ".join(f"`{item.analysis}`" for item in lacking)
        markup.note(f"Not stored yet for every model, so not in a report: {names}.")
    if not ready:
        markup.empty(
            "Nothing to report yet",
            "No analysis is stored for all of these models on this text. Compute one on its page, "
            "or choose the bundled pair on the page of models.",
        )
        navigation.link("Overview", "To the overview")
        return
    key = "report-analyses"
    st.session_state[key] = [name for name in st.session_state.get(key, ready) if name in ready]
    names = st.multiselect(
        "Analyses",
        list(ready),
        key=key,
        format_func=lambda name: catalog.get(name).title,
        persist_state="session",
    )
    results = [ready[name] for name in ready if name in names]
    placeholder = default_title(results) if results else ""
    title = st.text_input(
        "Title",
        key="report-title",
        max_chars=120,
        placeholder=placeholder,
        persist_state="session",
    )
    command = guarded(_command, results, title or "") if results else ""
    if st.button(
        "Build report",
        key="report-build",
        type="primary",
        icon=":material/description:",
        disabled=not results,
    ):
        with st.spinner("Drawing every figure …"):
            _write(results, title or "", command or "")


def _command(results: Sequence[Result], title: str) -> str:
    """The command line that makes the same report, shown for copying."""
    view = state.view()
    try:
        command = report_command(results, view.slots, view.corpus, title=title)
    except NotApplicable as error:
        markup.note(str(error))
        return ""
    markup.quiet("The same from the command line:")
    st.code(command, language="shell", wrap_lines=True)
    return command


def _write(results: Sequence[Result], title: str, command: str) -> None:
    view = state.view()
    report = build_report(
        results,
        report_directory(resources.options().store, results, title),
        title=title,
        command=command or "the explorer of normlens",
        config=report_config(view.slots, view.corpus),
    )
    st.session_state[_OPEN] = report.directory.name


def _open() -> None:
    reports = {report.directory.name: report for report in built_reports(resources.options().store)}
    if not reports:
        return
    markup.heading("Read")
    if st.session_state.get(_OPEN) not in reports:
        st.session_state[_OPEN] = next(iter(reports))
    report = reports[
        st.selectbox(
            "Report",
            list(reports),
            key=_OPEN,
            format_func=lambda name: _words(reports[name]),
            persist_state="session",
        )
    ]
    if not report.passed:
        markup.note("A self-check failed; the report says which.", "error")
    _downloads(report)
    if st.toggle("Open here", value=True, key="report-inline", persist_state="session"):
        st.iframe(report.page, height=PAGE_HEIGHT, alt=report.title)
        markup.quiet("Its links to tables and figures lead somewhere in the unpacked zip file.")


def _downloads(report: BuiltReport) -> None:
    name = f"normlens-{report.directory.name}"
    with st.container(horizontal=True, gap="small", key="report-downloads"):
        st.download_button(
            "Page (HTML)",
            data=report.page.read_bytes,
            file_name=f"{name}.html",
            mime="text/html",
            key="report-html",
            on_click="ignore",
            icon=":material/draft:",
        )
        st.download_button(
            "Everything (zip)",
            data=report.archive,
            file_name=f"{name}.zip",
            mime="application/zip",
            key="report-zip",
            on_click="ignore",
            icon=":material/folder_zip:",
        )


def _words(report: BuiltReport) -> str:
    return f"{report.title}, {report.created.replace('T', ' ').partition('+')[0]} UTC"
