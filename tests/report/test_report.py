"""The report directory: self-contained, repeatable, whole or absent, and escaped."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import plotly.io
import pytest

from normlens.errors import OutputError, UsageError
from normlens.report import write, write_report
from normlens.report.export import csv_bytes
from normlens.report.numbers import fixed, number, places, prose
from normlens.results import Check, Result
from tests.synthetic_results import FOUR, Model, result, results

HOSTILE = "</script><script>alert('$x$')</script> 🙂"
FEW = [FOUR[0], FOUR[3]]


class Page(HTMLParser):
    """What a browser would find: elements, ids, and everything it would fetch."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        for key, value in attrs:
            if key == "id":
                self.ids.append(value or "")
            if key in ("src", "srcset", "data", "poster") or (key == "href" and tag != "a"):
                self.loads.append(value or "")
            if key == "href" and tag == "a":
                self.links.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def write_to(out: Path, found: list[Result], **options: object) -> str:
    arguments: dict[str, object] = {"title": "A report", "command": "normlens compare a b"}
    path = write_report(found, out, **{**arguments, **options})  # type: ignore[arg-type]
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "four"
    write_to(out, results(), warnings=["Mind the gap."], config={"seed": 3, "nan": math.nan})
    return out


@pytest.fixture(scope="module")
def document(directory: Path) -> str:
    return (directory / "report.html").read_text(encoding="utf-8")


def test_the_directory_holds_what_it_promises(directory: Path) -> None:
    files = {str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()}
    assert {"report.html", "summary.json", "provenance.json", "config.resolved.json"} <= files
    assert {"tables/headlines.csv", "tables/scale.scale.parquet"} <= files
    figure = directory / "figures" / "scale.by_site.json"
    assert plotly.io.from_json(figure.read_text(encoding="utf-8")).data
    stored = pd.read_parquet(directory / "tables" / "scale.scale.parquet")
    pd.testing.assert_frame_equal(stored, result("scale").tables["scale"])
    assert json.loads((directory / "config.resolved.json").read_text())["nan"] is None


def test_the_summary_is_for_programs(directory: Path) -> None:
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    assert summary["schema_version"] == 1
    assert summary["passed"] is True
    assert summary["models"] == [m.name for m in FOUR]
    assert summary["not_applicable"]["freeze-sweep"] == {
        "books-lnfree": "every scale of this model is fixed already"
    }
    for file in (*summary["figures"], *summary["tables"]):
        assert (directory / file).is_file()


def test_nothing_is_loaded_from_outside(document: str) -> None:
    page = Page(document)
    assert page.loads == []
    style = "".join(re.findall(r"<style>.*?</style>", document, re.S))
    assert style
    assert "url(" not in style and "@import" not in style
    assert "default-src 'none'" in document
    assert document.count("sendChartToCloud") and "showSendToCloud: false" in document
    external = {link for link in page.links if "://" in link}
    assert all(link.startswith("https://arxiv.org/abs/") for link in external)


def test_plotly_is_there_once_and_on_request_elsewhere(document: str, tmp_path: Path) -> None:
    assert document.count("* plotly.js v") == 1
    remote = write_to(tmp_path / "cdn", [result("output", FEW)], js="cdn")
    assert len(remote) < 500_000
    assert [load for load in Page(remote).loads if "cdn.plot.ly" in load]
    assert 'integrity="sha256-' in remote


def test_links_lead_somewhere(document: str, directory: Path) -> None:
    page = Page(document)
    assert len(page.ids) == len(set(page.ids))
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids
        elif "://" not in link:
            assert (directory / link).is_file()


def test_the_page_says_what_matters(document: str) -> None:
    text = " ".join(Page(document).text)
    checks = sum(len(checks) for r in results() for checks in r.checks.values())
    assert all(r.passed for r in results())
    for words in (
        "What this shows",
        "Mind the gap.",
        f"{checks} of {checks} checks passed",
        "every site verified",
        "Not applicable to",
        "every scale of this model is fixed already",
        "[3.960, 4.080]",
        "Δ +0.011",
        "weight cosine",
        "normlens compare a b",
    ):
        assert words in text, words


def test_equal_runs_write_equal_bytes(directory: Path, tmp_path: Path) -> None:
    later = [
        dataclasses.replace(
            r, provenance={m: {**p, "created": "2032"} for m, p in r.provenance.items()}
        )
        for r in results()
    ]
    write_to(tmp_path / "b", later, warnings=["Mind the gap."], config={"seed": 3, "nan": math.nan})
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name != "provenance.json":
            twin = tmp_path / "b" / path.relative_to(directory)
            assert path.read_bytes() == twin.read_bytes(), path.name


def test_no_time_stands_on_the_page(document: str, directory: Path) -> None:
    assert "2031-01-01" not in document
    provenance = (directory / "provenance.json").read_text(encoding="utf-8")
    assert "2031-01-01" in provenance
    assert json.loads(provenance)["created"]


def test_hostile_strings_stay_text(document: str, tmp_path: Path) -> None:
    models = [Model(HOSTILE), Model("=1+1", "scale_free", HOSTILE, seed=1)]
    found = [dataclasses.replace(r, warnings=(HOSTILE,)) for r in results(models)]
    hostile = write_to(tmp_path / "hostile", found, title=HOSTILE, command=HOSTILE)
    assert "<script>alert" not in hostile
    page = Page(hostile)
    assert page.elements.count("script") == Page(document).elements.count("script")
    # Titles, warnings and names are still readable.
    assert HOSTILE in "".join(page.text)
    table = (tmp_path / "hostile" / "tables" / "headlines.csv").read_text(encoding="utf-8")
    assert not [c for row in csv.reader(io.StringIO(table)) for c in row if c.startswith("=")]


def test_csv_cells_are_no_formulas() -> None:
    table = pd.DataFrame(
        {"=name": ["=1+1", "+1", "-1", "@x", "\tx", "fine"], "number": [-1.5, 2, 3, 4, 5, math.nan]}
    )
    rows = list(csv.reader(io.StringIO(csv_bytes(table).decode())))
    assert rows[0] == ["'=name", "number"]
    assert [row[0] for row in rows[1:]] == ["'=1+1", "'+1", "'-1", "'@x", "'\tx", "fine"]
    assert rows[1][1] == "-1.5"
    assert rows[-1][1] == ""


def test_failed_checks_are_shown_open(tmp_path: Path) -> None:
    found = result("output", FEW)
    failed = Check("conservation", 0.3, 1e-5, False, "contributions add up")
    found = dataclasses.replace(found, checks={**found.checks, "books-lnfree": (failed,)})
    document = write_to(tmp_path / "failed", [found])
    assert "1 of 2 checks passed" in document
    assert re.search(r"<details open>\s*<summary><span class=\"bad\">1 of 2 passed", document)
    assert json.loads((tmp_path / "failed" / "summary.json").read_text())["passed"] is False


def test_one_model_has_no_differences(tmp_path: Path) -> None:
    document = write_to(tmp_path / "one", results(FOUR[:1]))
    assert "Δ +" not in document.split('id="warnings"')[0]
    assert "Lineage" not in document


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("disk full")

    out = tmp_path / "report"
    monkeypatch.setattr(write, "write_table", broken)
    with pytest.raises(OSError, match="disk full"):
        write_to(out, [result("output", FEW)])
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_report_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "report"
    before = write_to(out, [result("output", FEW)])

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(write, "write_table", broken)
    with pytest.raises(OSError, match="disk full"):
        write_to(out, [result("output", FEW)], title="Another", replace=True)
    assert (out / "report.html").read_text(encoding="utf-8") == before
    assert [p.name for p in tmp_path.iterdir()] == ["report"]


def test_an_existing_directory_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "report"
    write_to(out, [result("output", FEW)])
    with pytest.raises(OutputError, match="exists already"):
        write_to(out, [result("output", FEW)])
    assert "Renewed" in write_to(out, [result("output", FEW)], title="Renewed", replace=True)


def test_a_directory_that_is_no_report_is_never_replaced(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("years of work")
    with pytest.raises(OutputError, match="something other than a report"):
        write_to(tmp_path, [result("output", FEW)], replace=True)
    assert precious.read_text() == "years of work"


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no results"):
        write_to(tmp_path / "none", [])


def test_a_large_page_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "LARGE_BYTES", 1_000_000)
    document = write_to(tmp_path / "large", [result("output", FEW)])
    assert "browsers may be slow" in document
    summary = json.loads((tmp_path / "large" / "summary.json").read_text())
    assert "browsers may be slow" in summary["warnings"][0]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (4.0184, "4.018"),
        (-0.002, "−0.002"),
        (1e-5, "1e−5"),
        (7938, "7,938"),
        (math.nan, "–"),
        (math.inf, "∞"),
        (0, "0"),
        (1234567.0, "1,234,567"),
    ],
)
def test_numbers(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_row_shares_its_decimals() -> None:
    assert places([4.0184, 0.1, math.nan]) == 3
    assert places([13, 0.0]) == 0
    assert places([]) == 0
    assert fixed(4.02, 3) == "4.020"
    assert fixed(-0.00204, 3, sign=True) == "−0.002"
    assert fixed(0.0, 3) == "0.000"
    assert fixed(-4.4e-4, 3, sign=True) == "−0.0004"


def test_prose_makes_code_of_backticks_and_escapes_the_rest() -> None:
    assert prose("a < `b<c`") == "a &lt; <code>b&lt;c</code>"
