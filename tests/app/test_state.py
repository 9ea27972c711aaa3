"""One selection for every page, missing results, parameters, and errors."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from normlens.errors import BadText
from normlens.workbench import jobs
from normlens.workbench.jobs import Job, JobStatus
from tests.app.opening import Explorer, charts, html


def _one(value: object) -> object:
    return value[0] if isinstance(value, list) else value


def test_a_link_selects_everywhere(explorer: Explorer) -> None:
    test = explorer.open("attention", layer="2", head="1")
    assert test.selectbox(key="select-layer").value == 2
    assert test.selectbox(key="select-head").value == 1
    assert "Selected: layer 2, head 1" in html(test)
    strip = test.dataframe[0].value
    assert {"books-ln value", "books-lnfree value", "books-lnfree delta"} <= set(strip.columns)
    plain = charts(explorer.open("attention"))
    marked = charts(test)
    shapes = [len(spec["layout"].get("shapes", [])) for spec in marked]
    assert sum(shapes) > sum(len(spec["layout"].get("shapes", [])) for spec in plain)


def test_the_selection_outlives_a_page_and_can_be_cleared(explorer: Explorer) -> None:
    test = explorer.open("attention", layer="2")
    test.selectbox(key="select-head").select(3).run()
    assert _one(test.query_params["head"]) == "3"
    explorer.switch(test, "attribution")
    assert test.selectbox(key="select-layer").value == 2
    assert test.selectbox(key="select-head").value == 3
    test.button(key="selection-clear").click().run()
    assert "layer" not in test.query_params
    assert "Selected:" not in html(test)


def test_an_address_sent_before_the_last_change_is_late_and_a_later_one_is_not(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = explorer.open("attention", layer="2", head="1")
    test.selectbox(key="select-head").select(3).run()
    test.query_params["head"] = "1"
    test.run()
    assert _one(test.query_params["head"]) == "3"
    assert test.selectbox(key="select-head").value == 3
    monkeypatch.setattr(sys.modules["explorer.state"], "LATE_SECONDS", 0.0)
    test.query_params["head"] = "1"
    test.run()
    assert test.selectbox(key="select-head").value == 1


def test_depth_as_a_share(explorer: Explorer) -> None:
    test = explorer.open("depth", show="residual")
    before = charts(test)
    test.sidebar.segmented_control(key="depth-mode").set_value("relative").run()
    assert not test.exception
    assert _one(test.query_params["depth"]) == "relative"
    assert charts(test) != before
    assert "nl-error" not in html(test)


def test_what_is_missing_can_be_computed(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[object, ...]] = []
    job = Job("0", tmp_path, 1, "normlens run scale books-ln $(evil)", ("scale",), 0.0)
    running = JobStatus("running", "books-ln", "*reading* the text", 3, 7, 2.0, "", "")

    def start(names, choices, corpus, **more):
        asked.append((names, [choice.source for choice in choices], corpus.sequences))
        return job

    monkeypatch.setattr(jobs, "start", start)
    monkeypatch.setattr(jobs, "status", lambda _job: running)
    test = explorer.open("norms", n="7", show="scale")
    body = html(test)
    assert "Not computed yet for books-ln, books-lnfree" in body
    assert "One pass over 7 sequences of books for 2 models" in body
    test.button(key="compute-scale").click().run()
    assert asked == [(("scale",), ["books-ln", "books-lnfree"], 7)]
    assert not test.exception
    assert job.command in [code.value for code in test.code]
    assert test.button(key="cancel-scale")
    cancelled = replace(running, state="cancelled")
    monkeypatch.setattr(jobs, "cancel", lambda _job: asked.append(("cancel",)))
    monkeypatch.setattr(jobs, "status", lambda _job: cancelled if len(asked) > 1 else running)
    test.button(key="cancel-scale").click().run()
    assert asked[-1] == ("cancel",)
    assert "Cancelled." in html(test)


def test_parameters_out_of_bounds_are_refused(explorer: Explorer) -> None:
    test = explorer.open("attention", show="attention-entropy")
    test.number_input(key="attention-entropy-sink_threshold").set_value(1.5)
    _apply(test)
    assert "sink_threshold" in html(test)
    assert "nl-error" in html(test)
    test.number_input(key="attention-entropy-sink_threshold").set_value(0.4)
    _apply(test)
    assert "Not computed yet" in html(test)


def _apply(test: AppTest) -> None:
    next(button for button in test.button if button.label == "Apply").click().run()


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (BadText("no text <b>x</b>; give $one$"), "no text &lt;b&gt;x&lt;/b&gt;; give $one$"),
        (KeyError("<i>"), "KeyError: &#39;&lt;i&gt;&#39;. This is a defect"),
    ],
)
def test_errors_are_one_line_where_they_happen(
    error: Exception, shown: str, explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_more: object) -> None:
        raise error

    st.cache_resource.clear()
    monkeypatch.setattr("normlens.figures.draw", fail)
    body = html(explorer.open("output", show="output"))
    assert shown in body
    assert "cross entropy" in body


def test_an_unknown_model_says_what_to_do(explorer: Explorer) -> None:
    body = html(explorer.open("models", a="books-lm"))
    assert "no model &#39;books-lm&#39;; did you mean books-ln?" in body


def test_a_link_to_a_prompt_of_another_store(explorer: Explorer) -> None:
    body = html(explorer.open("attribution", run="0123456789ab", show="prompt-attribution"))
    assert "no prompt &#39;0123456789ab&#39; is stored here" in body
