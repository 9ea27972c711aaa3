"""Entry of the explorer: ``streamlit run app/main.py``, or ``normlens app``."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

from explorer.shell import show  # noqa: E402 - the directory of this file is found first

show()
