"""The command line: exit codes, one line of error, nothing written when it fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from normlens.cli.app import run_command
from normlens.models.export import write_model
from normlens.results import Result
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tokenizer

PROMPT = ["run", "prompt-attribution", "{ln}", "--prompt-attribution.prompt"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_model(tiny_gpt2(1), tokenizer(), root / "ln")
    write_model(tiny_fixed_scale(1), tokenizer(), root / "lnfree")
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer().backend_tokenizer)
    write_model(tiny_gpt2(2), bare, root / "no-bos")
    return root


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fails(capsys: pytest.CaptureFixture[str], arguments: Sequence[str], code: int) -> str:
    assert run_command(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


def test_run_prints_json_and_saves_what_show_reads(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["run", "scale", "output", str(models / "ln"), "--sequences", "6", "--context", "32"]
    out = tmp_path / "out"
    assert run_command([*base, "--out", str(out), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"scale", "output"}
    assert data["output"]["headline"]["ln"][0]["n"] > 100
    assert Result.load(out / "scale").models == ("ln",)
    assert run_command(["show", str(out / "scale")]) == 0
    assert "spread" in capsys.readouterr().out
    assert run_command(["show", str(out / "scale"), "--table", "scale", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["scale"]) == 10
    assert "exists already" in fails(capsys, [*base, "--out", str(out)], 2)
    assert run_command([*base, "--out", str(out), "--force", "--json"]) == 0


def test_a_stored_result_is_taken_and_fresh_computes_again(
    models: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "scale", str(models / "ln"), "--sequences", "4", "--context", "32", "--json"]
    assert run_command(command) == 0
    first = capsys.readouterr().out
    (stored,) = (cache / "store" / "results").iterdir()
    kept = {path.name for path in (cache / "store").iterdir()}
    assert kept <= {"known", "results"}, "shards are dropped"
    stamp = (stored / "result.json").stat().st_mtime_ns
    assert run_command(command) == 0
    assert capsys.readouterr().out == first
    assert (stored / "result.json").stat().st_mtime_ns == stamp
    assert run_command([*command, "--fresh"]) == 0
    assert capsys.readouterr().out == first
    assert (stored / "result.json").stat().st_mtime_ns != stamp


def test_dry_run_computes_nothing(
    models: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "run",
        "scale",
        "freeze-sweep",
        str(models / "ln"),
        "--sequences",
        "8",
        "--dry-run",
    ]
    assert run_command(arguments) == 0
    out = capsys.readouterr().out
    assert "8 sequences" in out
    assert "MB" in out
    assert not cache.exists()


def test_inspect_lists_every_site(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["inspect", str(models / "lnfree"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in rows] == ["fixed_scale"] * 5
    assert all(row["verified"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["frobnicate"], 2, "frobnicate"),
        (["run", "scal", "{ln}"], 2, "did you mean 'scale'"),
        (["run", "scale"], 2, "name at least one model"),
        (["run", "{ln}"], 2, "name at least one analysis"),
        (["run", "scale", "nowhere"], 3, "no model 'nowhere'"),
        (["run", "scale", "{ln}", "--sequences", "-3"], 2, "--sequences is -3"),
        (["run", "scale", "{ln}", "--batch-size", "0"], 2, "--batch-size is 0"),
        (["run", "scale", "{ln}", "--context", "1"], 2, "--context is 1"),
        (["run", "scale", "{ln}", "--output.worst", "0"], 2, "--output.worst"),
        (["run", "scale", "{ln}", "--text", "missing.txt"], 3, "no text 'missing.txt'"),
        (["run", "scale", "{no-bos}"], 2, "--bos none"),
        ([*PROMPT, "a " * 300], 3, "context is 64"),
        (["show", "{ln}"], 3, "not a readable normlens result"),
        (["compare", "{ln}", "{ln}", "--out", "{tmp}/x"], 2, "named twice"),
        (["compare", "{ln}"], 2, "--out"),
        (["inspect", "{tmp}"], 3, "config.json"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_a_code(
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    places = {"{ln}": models / "ln", "{no-bos}": models / "no-bos", "{tmp}": tmp_path}
    given = []
    for argument in arguments:
        for key, path in places.items():
            argument = argument.replace(key, str(path))
        given.append(argument)
    assert message in fails(capsys, given, code)
    assert not (tmp_path / "x").exists()


def test_unwritable_output_is_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    command = ["run", "scale", str(models / "ln"), "--sequences", "2", "--context", "16"]
    assert run_command([*command, "--out", str(blocker / "out")]) == 2
    assert "cannot write to" in capsys.readouterr().err
