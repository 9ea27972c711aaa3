"""The tutorial runs from top to bottom as a notebook, and shows what it speaks of."""

from __future__ import annotations

from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.py"
SEQUENCES = "sequences=32"
"""In the test it takes fewer."""


@pytest.mark.components
@pytest.mark.slow
def test_the_tutorial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TUTORIAL.parents[1]))
    source = TUTORIAL.read_text(encoding="utf-8")
    assert source.count(SEQUENCES) == 2
    notebook = jupytext.reads(source.replace(SEQUENCES, "sequences=8"), fmt="py:percent")
    assert {cell.cell_type for cell in notebook.cells} == {"code", "markdown"}
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    said = [output.text for output in outputs if output.get("name") == "stderr"]
    # tqdm, which transformers uses, advises kernels without ipywidgets to install it.
    assert [text for text in said if "TqdmWarning" not in text] == []
    shown = [output.data for output in outputs if "data" in output]
    results = [data["text/html"] for data in shown if "checks passed" in data.get("text/html", "")]
    assert len(results) == 2
    assert all("✓" in html and "✗" not in html for html in results)
    assert sum("application/vnd.plotly.v1+json" in data for data in shown) == 1
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "lineage:" not in printed
    assert "controls: books-lnfree is compared without a control" in printed
