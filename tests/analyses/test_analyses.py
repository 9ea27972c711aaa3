"""The scripts of ``analyses/`` run from top to bottom and say what they are about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

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


@pytest.mark.slow
@pytest.mark.components
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_script_runs_and_writes_its_report(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPTS / f"{name}.py"), *ARGUMENTS[name]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS.parent), "HF_HUB_OFFLINE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for text in PRINTED[name]:
        assert text in done.stdout, text
    report = tmp_path / "out" / "analyses" / name / "report.html"
    assert report.stat().st_size > 1e6
    assert f"report: {report.relative_to(tmp_path)}" in done.stdout
