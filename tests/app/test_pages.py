"""Every page on the bundled pair: what it shows, not only that it does not fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

from normlens import catalog
from tests.app.opening import MAIN, Explorer, charts, html

TOPICS = ("norms", "attention", "outliers", "attribution", "depth", "output")
CORPUS = [a for a in catalog.ALL if a.runs_on == "corpus"]


def _whole(page: str) -> None:
    assert "nl-error" not in page
    assert page.count("<h1>") == 1


@pytest.mark.parametrize("analysis", CORPUS, ids=lambda a: a.name)
def test_every_corpus_analysis_has_a_place(analysis: catalog.Analysis, explorer: Explorer) -> None:
    page = analysis.topic if analysis.topic in TOPICS else "more-analyses"
    test = explorer.open(page, show=analysis.name)
    body = html(test)
    assert not test.exception
    _whole(body)
    assert f'id="{analysis.name}"' in body
    assert len(charts(test)) == len(analysis.figures)
    assert any(analysis.name in code.value or "compare(" in code.value for code in test.code)
    assert {"What this means"} <= {box.label for box in test.expander}
    result_tables = [box.label for box in test.expander if (box.label or "").startswith("Tables")]
    assert result_tables
    assert "Checks" in body or "Not applicable" in body


def test_overview(explorer: Explorer) -> None:
    test = explorer.open()
    body = html(test)
    assert not test.exception
    _whole(body)
    assert "self-checks of these runs passed" in body
    assert "Lineage: books-lnfree and books-ln are related" in body
    assert "compared without a control" in body
    assert "cross entropy" in body and "n = 16,225" in body and "Δ" in body
    assert body.index("What differs most") < body.index("Headline numbers")
    assert len(charts(test)) == 4


def test_a_control_answers_the_caveat(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without results of the control nothing is claimed about it: it is offered to compute."""
    monkeypatch.setenv("NORMLENS_APP_MODELS", '["books-ln", "books-lnfree", "books-control"]')
    body = html(explorer.open())
    assert "books-control" in body
    assert "analyses are not computed yet" in body


def test_not_applicable_is_said_in_words(explorer: Explorer) -> None:
    body = html(explorer.open("norms", show="freeze-sweep"))
    assert "Not applicable to books-lnfree: every norm of books-lnfree is scale-free" in body
    assert '<span class="nl-none">not applicable</span>' in body


def test_models_page(explorer: Explorer) -> None:
    test = explorer.open("models")
    body = html(test)
    assert not test.exception
    _whole(body)
    assert "books-control" in body and "reference" in body
    test.button(key="add-slot").click().run()
    assert len(test.query_params) == 3
    test.selectbox(key="slot-source-2").select("books-control").run()
    assert test.query_params["c"] in ("books-control", ["books-control"])
    test.button(key="remove-0").click().run()
    assert test.query_params["a"] in ("books-lnfree", ["books-lnfree"])


def test_text_page_needs_no_model_before_a_prompt(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorer.warm.start", lambda: None)
    test = explorer.open("text")
    assert not test.exception
    assert "No prompt yet" in html(test)
    assert test.text_area(key="prompt-text").value.startswith("Alice")


def test_corpus_form(explorer: Explorer) -> None:
    test = explorer.open("text")
    test.segmented_control(key="text-part").set_value("Corpus").run()
    test.number_input(key="corpus-sequences").set_value(64).run()
    assert not test.exception
    assert test.query_params["n"] in ("64", ["64"])
    assert "up to 20 MB" in test.get("file_uploader")[0].proto.label


@pytest.mark.parametrize("page", ["removal-lab", "reports", "help", "more-analyses"])
def test_other_pages(page: str, explorer: Explorer) -> None:
    test = explorer.open(page)
    assert not test.exception
    _whole(html(test))


def test_stored_results_are_shown_without_torch(explorer: Explorer) -> None:
    code = (
        "import sys\n"
        "from streamlit.testing.v1 import AppTest\n"
        f"test = AppTest.from_file({str(MAIN)!r}, default_timeout=120).run()\n"
        "assert not test.exception\n"
        "assert len(test.get('plotly_chart')) == 4\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
