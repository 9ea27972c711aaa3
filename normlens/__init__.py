"""normlens: what normalization does inside a transformer, and what changes when it is gone.

Public names are loaded on first use, so importing the package costs nothing and a saved
result can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normlens.models import Lens, open_model
    from normlens.results import Result
    from normlens.runner import run
    from normlens.side_by_side import compare
    from normlens.text import load_corpus, read_documents

__version__ = "0.1.0"
__all__ = ["Lens", "Result", "compare", "load_corpus", "open_model", "read_documents", "run"]

_HOME = {
    "Lens": "normlens.models",
    "open_model": "normlens.models",
    "Result": "normlens.results",
    "run": "normlens.runner",
    "compare": "normlens.side_by_side",
    "load_corpus": "normlens.text",
    "read_documents": "normlens.text",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'normlens' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
