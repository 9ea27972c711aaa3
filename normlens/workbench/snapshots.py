"""What a prompt page shows, kept under a short id: a link carries the id, not the prompt."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from normlens.atomic import atomic_file
from normlens.errors import UnknownName
from normlens.workbench.choices import BosChoice

ID = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class Snapshot:
    """A prompt and how it is read.

    Attributes:
        prompt: text.
        target: token to explain; empty for the top prediction.
        against: token to subtract; empty for none.
        bos: BOS policy.
        extra: further JSON data of a page, e.g. a contrast pair.
    """

    prompt: str
    target: str = ""
    against: str = ""
    bos: BosChoice = "prepend"
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of its SHA-256."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class Snapshots:
    """The snapshots below ``store/snapshots``."""

    def __init__(self, store: Path) -> None:
        self.directory = store / "snapshots"

    def save(self, snapshot: Snapshot) -> str:
        """Keep a snapshot, which becomes the newest, and return its id.

        Raises:
            OutputError: it cannot be written.
        """
        path = self.directory / f"{snapshot.id}.json"
        if path.is_file():
            os.utime(path)
            return snapshot.id
        with atomic_file(path) as temporary:
            text = json.dumps(asdict(snapshot), indent=2, sort_keys=True) + "\n"
            temporary.write_text(text, encoding="utf-8")
        return snapshot.id

    def load(self, id: str) -> Snapshot:
        """The snapshot of an id.

        Raises:
            UnknownName: none is stored under it here.
        """
        found = _read(self.directory / f"{id}.json") if ID.fullmatch(id) else None
        if found is None:
            raise UnknownName(
                f"no prompt {id[:12]!r} is stored here; links to prompts work with the store "
                "they were made in: type the prompt, or start with --results and that store"
            )
        return found

    def history(self, limit: int = 20) -> list[Snapshot]:
        """The snapshots that were saved last, newest first."""
        try:
            paths = [path for path in self.directory.iterdir() if ID.fullmatch(path.stem)]
            newest = sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)
        except OSError:
            return []
        found = (_read(path) for path in newest)
        return list(islice((snapshot for snapshot in found if snapshot is not None), limit))


def _read(path: Path) -> Snapshot | None:
    try:
        return Snapshot(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):
        return None
