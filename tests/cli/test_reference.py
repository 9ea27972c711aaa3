"""``--reference``, untrained models and the estimate, from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from normlens.cli.app import run_command
from normlens.models.export import write_model
from tests.cli.pages import pages
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tokenizer

SMALL = ["--sequences", "4", "--context", "24", "--json"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """``--text`` and a few pages: encoding the bundled books takes longer than the analyses."""
    return ["--text", str(pages(tmp_path_factory.mktemp("pages")))]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_model(tiny_gpt2(1), tokenizer(), root / "ln")
    write_model(tiny_gpt2(2), tokenizer(), root / "other")
    write_model(tiny_fixed_scale(1), tokenizer(), root / "lnfree")
    return root


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))


def divergence(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, float]]:
    assert run_command(["run", "divergence", *arguments, *SMALL]) == 0
    found = json.loads(capsys.readouterr().out)["divergence"]
    numbers = {m: {h["name"]: h["value"] for h in rows} for m, rows in found["headline"].items()}
    for model, reason in found["not_applicable"].items():
        assert model in reason
        assert not numbers[model]
    return numbers


def test_the_reference_is_the_one_named_else_the_first(
    models: Path, text: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ln, other, lnfree = (str(models / name) for name in ("ln", "other", "lnfree"))
    named = divergence(capsys, lnfree, "--reference", ln, *text)
    assert named["lnfree"]["jsd"] > 1e-4
    both = divergence(capsys, ln, lnfree, *text)
    assert both["ln"] == {}
    assert both["lnfree"] == named["lnfree"]
    against_another = divergence(capsys, ln, lnfree, "--reference", other, *text)
    assert against_another["ln"]["jsd"] > 0
    assert against_another["lnfree"] != named["lnfree"]
    assert divergence(capsys, ln, *text)["ln"] == {}


def test_an_untrained_model_can_be_the_reference(
    models: Path, text: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ln = str(models / "ln")
    one = divergence(capsys, ln, "--reference", f"untrained:{ln}", *text)
    other = divergence(capsys, ln, "--reference", f"untrained:{ln}@1", *text)
    assert one["ln"]["jsd"] > 0
    assert one != other


def forwards(capsys: pytest.CaptureFixture[str], *arguments: str) -> int:
    assert run_command(["run", *arguments, "--sequences", "8", "--dry-run"]) == 0
    match = re.search(r"([\d,]+)\s+sequence\s+forward\s+passes", capsys.readouterr().out)
    assert match is not None
    return int(match[1].replace(",", ""))


def test_the_estimate_counts_what_analyses_declare(
    models: Path, text: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ln, lnfree = str(models / "ln"), str(models / "lnfree")
    assert forwards(capsys, "scale", "output", ln, *text) == 8
    assert forwards(capsys, "divergence", ln, *text) == 16
    assert forwards(capsys, "gradients", ln, "--gradients.sequences", "3", *text) == 9
    # Five live norms: means, intact and 2 * 5 - 1 variants, on 3 sequences.
    sweep = ("freeze-sweep", "--freeze-sweep.sequences", "3")
    assert forwards(capsys, *sweep, ln, *text) == 33
    assert forwards(capsys, *sweep, lnfree, *text) == 0
    assert forwards(capsys, "scale", *sweep, ln, *text) == 41
