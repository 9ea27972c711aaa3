"""Corpora and prompts -> token sequences with masks, documents and an explicit BOS policy.

What needs torch is loaded on first use: reading documents does not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from normlens.text.documents import Document, Documents, read_documents

if TYPE_CHECKING:
    from normlens.text.encoding import (
        DEFAULT_CONTEXT,
        encode,
        encode_prompt,
        load_corpus,
        token_ids,
    )
    from normlens.text.sequences import Batch, BosPolicy, Sequences

__all__ = [
    "DEFAULT_CONTEXT",
    "Batch",
    "BosPolicy",
    "Document",
    "Documents",
    "Sequences",
    "encode",
    "encode_prompt",
    "load_corpus",
    "read_documents",
    "token_ids",
]

_HOME = {
    "DEFAULT_CONTEXT": "encoding",
    "Batch": "sequences",
    "BosPolicy": "sequences",
    "Sequences": "sequences",
    "encode": "encoding",
    "encode_prompt": "encoding",
    "load_corpus": "encoding",
    "token_ids": "encoding",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'normlens.text' has no attribute {name!r}")
    return getattr(importlib.import_module(f"normlens.text.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
