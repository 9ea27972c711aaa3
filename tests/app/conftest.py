"""The explorer on the bundled pair, with an empty store of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.app.opening import MAIN, Explorer

# As `streamlit run` does with the directory of its script.
sys.path.insert(0, str(MAIN.parent))


@pytest.fixture
def explorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Explorer:
    monkeypatch.setenv("NORMLENS_APP_MODELS", json.dumps(["books-ln", "books-lnfree"]))
    monkeypatch.setenv("NORMLENS_APP_RESULTS", str(tmp_path))
    for name in ("MODEL_ROOT", "ONLINE", "RUNS"):
        monkeypatch.delenv(f"NORMLENS_APP_{name}", raising=False)
    return Explorer(tmp_path)
