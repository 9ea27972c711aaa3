"""Which results lie below a store: what their provenance says, read once per file. No torch."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from normlens.results import SCHEMA_VERSION, Result

SETTLED_SECONDS = 2.0
"""A directory that changed more recently is listed again: its time may not tell two changes."""

MOST_LOADED = 256
"""Results kept in memory."""


@dataclass(frozen=True)
class Entry:
    """One stored result of one model.

    Attributes:
        path: its directory.
        changed_ns: when ``result.json`` was written.
        analysis: registry name.
        model: the name it was stored under.
        provenance: its record.
    """

    path: Path
    changed_ns: int
    analysis: str
    model: str
    provenance: Mapping[str, Any]

    @property
    def created(self) -> datetime:
        """When it was written, UTC."""
        return datetime.fromtimestamp(self.changed_ns / 1e9, tz=UTC)


class ResultIndex:
    """The results below ``root/results``; safe to use from several threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[tuple[int, int], Entry | None]] = {}
        self._listed_at: int | None = None
        self._loaded: OrderedDict[tuple[Path, int], Result] = OrderedDict()

    def entries(self) -> tuple[Entry, ...]:
        """Every readable result of one model, newest first."""
        with self._lock:
            self._refresh()
            found = [entry for _, entry in self._entries.values() if entry is not None]
        return tuple(sorted(found, key=lambda entry: entry.changed_ns, reverse=True))

    def load(self, entry: Entry) -> Result:
        """The result of an entry, from memory where it was loaded before.

        Raises:
            LoadError: it cannot be read any more.
        """
        key = (entry.path, entry.changed_ns)
        with self._lock:
            if key in self._loaded:
                self._loaded.move_to_end(key)
                return self._loaded[key]
        result = Result.load(entry.path)
        with self._lock:
            self._loaded[key] = result
            while len(self._loaded) > MOST_LOADED:
                self._loaded.popitem(last=False)
        return result

    def _refresh(self) -> None:
        directory = self.root / "results"
        try:
            changed = directory.stat().st_mtime_ns
            if changed == self._listed_at:
                return
            names = [item.name for item in os.scandir(directory) if item.name[0] != "."]
        except OSError:
            self._entries.clear()
            self._listed_at = None
            return
        known, self._entries = self._entries, {}
        for name in names:
            path = directory / name
            try:
                stat = (path / "result.json").stat()
            except OSError:
                continue
            mark = (stat.st_mtime_ns, stat.st_size)
            old = known.get(name)
            self._entries[name] = old if old and old[0] == mark else (mark, _read(path, mark[0]))
        settled = time.time_ns() - changed > SETTLED_SECONDS * 1e9
        self._listed_at = changed if settled else None


def _read(path: Path, changed_ns: int) -> Entry | None:
    """The entry of a directory; None for what is no result of one model of this schema."""
    try:
        meta = json.loads((path / "result.json").read_text(encoding="utf-8"))
        (model,) = meta["models"]
        if meta["schema_version"] != SCHEMA_VERSION:
            return None
        return Entry(path, changed_ns, meta["analysis"], model, meta["provenance"][model])
    except (OSError, KeyError, TypeError, ValueError):
        return None
