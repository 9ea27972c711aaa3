"""A little text for commands: three files, each a document."""

from __future__ import annotations

import json
from pathlib import Path

from normlens.resources import data_path


def pages(directory: Path) -> Path:
    """The beginnings of three bundled excerpts as files in ``directory``; returns it."""
    held_out = data_path("text", "books-held-out.jsonl").read_text(encoding="utf-8")
    for number, line in enumerate(held_out.split("\n")[:3]):
        path = directory / f"{number}.txt"
        path.write_text(json.loads(line)["text"][:2000], encoding="utf-8")
    return directory
