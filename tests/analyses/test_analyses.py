"""The scripts of ``analyses/`` run from top to bottom and say what they are about."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
import pytest

import normlens
from normlens.results import Result

SCRIPTS = Path(__file__).parents[2] / "analyses"
ARGUMENTS = {
    "ln_removal": [],
    "entropic_overload": ["books-ln", "untrained:books-ln"],
    "outliers_and_sinks": ["books-ln", "books-lnfree"],
    "bigram_backcopy": ["60"],
    "norm_family": ["ln-gelu", "ln-relu"],
}
PRINTED = {
    "ln_removal": ["loss, nats/token", "GPT-2 small, Pile-filtered", "2.79"],
    "entropic_overload": ["reproduction", "published: LayerNorm", "untrained:books-ln"],
    "outliers_and_sinks": ["kurtosis_per_token_rotated", "sink_rate"],
    "norm_family": ["cannot be shown", "(one seed)", "ln-relu < none-relu"],
    "bigram_backcopy": ["weight of BOS if uniform", "loss_trigger", "softplus"],
}


def test_every_script_is_tested() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.py")} == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_script_is_a_notebook_that_says_what_it_cannot_show(name: str) -> None:
    cells = jupytext.read(SCRIPTS / f"{name}.py").cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for heading in ("**Question.**", "**Published", "**Ours.**", "cannot show"):
        assert heading in prose, heading


@dataclass(frozen=True)
class Fewer:
    """``normlens.compare`` on at most so many sequences: the scripts take minutes on theirs."""

    compare: Callable[..., list[Result]]
    most: int = 8

    def __call__(self, *arguments: Any, sequences: int, **more: Any) -> list[Result]:
        assert sequences > self.most
        return self.compare(*arguments, sequences=self.most, **more)


@pytest.mark.slow
@pytest.mark.components
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_script_runs_and_writes_its_report(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *ARGUMENTS[name]])
    monkeypatch.setattr(normlens, "compare", Fewer(normlens.compare))
    runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for text in PRINTED[name]:
        assert text in printed, text
    report = tmp_path / "out" / "analyses" / name / "report.html"
    assert report.stat().st_size > 1e6
    assert f"report: {report.relative_to(tmp_path)}" in printed
