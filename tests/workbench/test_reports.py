"""The explorer's reports are those of the command line, and its command makes them."""

from __future__ import annotations

import dataclasses
import io
import shlex
import zipfile
from pathlib import Path
from typing import Any

import pytest

from normlens.cli.app import app
from normlens.cli.parameters import chosen_parameters
from normlens.errors import LoadError, NotApplicable, UsageError
from normlens.report import write_report
from normlens.results import Result
from normlens.workbench.choices import CorpusChoice, ModelChoice
from normlens.workbench.reports import (
    build_report,
    built_reports,
    default_title,
    read_report,
    report_command,
    report_config,
    report_directory,
)
from tests.synthetic_results import FOUR, result

MODELS = [FOUR[0], FOUR[3]]
CHOICES = tuple(ModelChoice(model.name) for model in MODELS)


def parametrised(analysis: str, **parameters: Any) -> Result:
    made = result(analysis, MODELS)
    origin = {m: {**p, "parameters": parameters} for m, p in made.provenance.items()}
    return dataclasses.replace(made, provenance=origin)


@pytest.fixture(scope="module")
def found() -> list[Result]:
    return [result("scale", MODELS)]


def parsed(command: str) -> dict[str, Any]:
    """What the command line makes of a command."""
    program, *words = shlex.split(command)
    assert program == "normlens"
    function, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    assert function.__name__ == "compare"
    return {**bound.arguments}


def test_a_built_report_has_the_bytes_of_the_command_line(
    tmp_path: Path, found: list[Result]
) -> None:
    config = report_config(CHOICES, CorpusChoice())
    built = build_report(found, tmp_path / "a", title=" ", command="normlens x", config=config)
    write_report(
        found, tmp_path / "b", title=default_title(found), command="normlens x", config=config
    )
    files = {p.relative_to(tmp_path / "a"): p.read_bytes() for p in built.directory.rglob("*.*")}
    others = {p.relative_to(tmp_path / "b"): p.read_bytes() for p in (tmp_path / "b").rglob("*.*")}
    created = Path("provenance.json")
    assert set(files) == set(others) and created in files
    del files[created], others[created]
    assert files == others
    assert built.title == " · ".join(model.name for model in MODELS)
    assert built.command == "normlens x" and built.passed


def test_the_archive_holds_every_file_under_one_directory(
    tmp_path: Path, found: list[Result]
) -> None:
    built = build_report(found, tmp_path / "r", title="t", command="c")
    with zipfile.ZipFile(io.BytesIO(built.archive())) as archive:
        names = set(archive.namelist())
        assert archive.read("r/report.html") == built.page.read_bytes()
        assert archive.testzip() is None
    on_disk = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert names == on_disk
    assert built.archive() == built.archive()


def test_built_reports_are_found_again_latest_first(tmp_path: Path, found: list[Result]) -> None:
    places = [report_directory(tmp_path, found, title) for title in ("one", "two")]
    assert len(set(places)) == 2
    assert report_directory(tmp_path, found, " one ") == places[0]
    for place, title in zip(places, ("one", "two"), strict=True):
        build_report(found, place, title=title, command=f"normlens {title}")
    provenance = places[0] / "provenance.json"
    text = provenance.read_text()
    created = read_report(places[0]).created
    provenance.write_text(text.replace(created, "2999" + created[4:]))
    assert [report.title for report in built_reports(tmp_path)] == ["one", "two"]
    (places[0] / "provenance.json").write_text("{")
    assert [report.title for report in built_reports(tmp_path)] == ["two"]
    with pytest.raises(LoadError, match="build it again"):
        read_report(places[0])


def test_no_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no results"):
        build_report([], tmp_path / "r", title="t", command="c")


def test_the_command_says_what_was_chosen() -> None:
    choices = [ModelChoice(name, dtype="bfloat16") for name in ("a b", "c")]
    corpus = CorpusChoice("my text.txt", 7, 64, "none")
    results = [
        parametrised("scale", per_token=True),
        parametrised("attention-entropy", sink_threshold=0.25, sink_positions=64),
    ]
    arguments = parsed(report_command(results, choices, corpus, title="A $x$ 'b'", out="o"))
    assert arguments["models"] == ("a b", "c")
    assert arguments["analyses"] == ("scale", "attention-entropy")
    text, models = arguments["text_options"], arguments["model_options"]
    assert (text.text, text.sequences, text.context, text.bos) == ("my text.txt", 7, 64, "none")
    assert (models.dtype, models.device, models.convert) == ("bfloat16", "cpu", False)
    assert arguments["title"] == "A $x$ 'b'" and arguments["out"] == Path("o")
    chosen = chosen_parameters(arguments["analysis_flags"])
    assert chosen["scale"].per_token is True
    assert chosen["attention-entropy"].sink_threshold == 0.25


def test_defaults_are_left_out(found: list[Result]) -> None:
    command = report_command(found, CHOICES, CorpusChoice())
    names = " ".join(model.name for model in MODELS)
    assert command == (
        f"normlens compare {names} --analyses scale --sequences 128 --out out/report"
    )


def test_models_opened_in_different_ways_have_no_one_command(found: list[Result]) -> None:
    choices = [CHOICES[0], dataclasses.replace(CHOICES[1], dtype="float16")]
    with pytest.raises(NotApplicable, match="opens all models alike"):
        report_command(found, choices, CorpusChoice())
