"""Map fixed ranges of sequences to States, keep each on disk, reduce in order.

A shard is 64 sequences and does not depend on the batch size. It is written atomically
under the digest of everything that decides its numbers, so a resumed run skips what is
there and ends with the bytes of an unbroken one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlens.atomic import atomic_file
from normlens.capture.state import State
from normlens.store import digest

SHARD_SEQUENCES = 64


@dataclass(frozen=True)
class Step:
    """Progress of a pass: sequences and tokens done so far under a label."""

    label: str
    sequences: int
    total_sequences: int
    tokens: int
    resumed: bool


Report = Callable[[Step], None]


def ranges(count: int) -> Iterator[tuple[int, int, int]]:
    """``(shard, start, stop)`` of every shard."""
    for shard, start in enumerate(range(0, count, SHARD_SEQUENCES)):
        yield shard, start, min(start + SHARD_SEQUENCES, count)


@dataclass(frozen=True)
class ShardStore:
    """Shards of one computation.

    Attributes:
        root: directory, or None to keep nothing.
        key: everything that decides the numbers.
    """

    root: Path | None
    key: Mapping[str, Any]

    @property
    def directory(self) -> Path | None:
        """Where the shards lie."""
        return None if self.root is None else self.root / digest(self.key)[:32]

    def load(self, label: str, shard: int) -> State | None:
        """A stored shard, or None.

        Raises:
            StoreMismatch: the file is unreadable or another computation's.
        """
        path = self._path(label, shard)
        if path is None or not path.is_file():
            return None
        return State.load(path, {"key": digest(self.key)})

    def save(self, label: str, shard: int, state: State) -> None:
        """Store a shard; the key is written beside it once."""
        path = self._path(label, shard)
        if path is None:
            return
        description = path.parents[1] / "key.json"
        if not description.is_file():
            with atomic_file(description) as temporary:
                temporary.write_text(
                    json.dumps(self.key, indent=2, sort_keys=True, default=str) + "\n"
                )
        state.save(path, {"key": digest(self.key)})

    def clear(self) -> None:
        """Drop the shards; called once their result is stored."""
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _path(self, label: str, shard: int) -> Path | None:
        directory = self.directory
        return None if directory is None else directory / label / f"shard-{shard:05d}.safetensors"
