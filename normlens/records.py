"""What is known of models and corpora without opening them: notes beside stored results.

A stored result names the digests of the weights and tokens it was computed from; a reader
chooses a path and a number of sequences. These notes lead from the one to the other without
torch, and say nothing where they cannot be sure. Below ``known/`` of a store:

* ``models/``: how a source opened. It holds only while each of its files is the one that was
  read: equal size and times of change, or equal SHA-256 where that was taken (up to
  :data:`HASHED_BYTES` for the model). A model trained again in place is another model.
* ``corpora/``: the token digest of a text, by the digest of its documents and by how it was
  cut.
* ``cosines/``: the cosine between the weights of two models, by their digests.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from normlens.atomic import atomic_file
from normlens.store import digest

KNOWN = "known"
"""Directory of the notes below a store."""

HASHED_BYTES = 64_000_000
"""Models up to this size are known by their content, larger ones by size and times alone."""


@dataclass(frozen=True)
class FileMark:
    """One file as it was read; times are None in notes that travel between machines."""

    name: str
    size: int
    mtime_ns: int | None
    ctime_ns: int | None
    sha256: str | None


@dataclass(frozen=True)
class ModelKey:
    """How a model was asked for; ``source`` is absolute where it is a path."""

    source: str
    dtype: str | None
    revision: str | None
    convert: bool


@dataclass(frozen=True)
class ModelRecord:
    """How a source opened, and the files it was read from.

    Attributes:
        key: what was asked for.
        weights_sha256: as in :class:`~normlens.models.lens.Identity`.
        config_sha256: likewise.
        tokenizer_sha256: of its tokenizer; empty without one.
        context: longest sequence it reads, in tokens.
        edits: labels of the edits that opening applied.
        files: marks of every deciding file.
    """

    key: ModelKey
    weights_sha256: str
    config_sha256: str
    tokenizer_sha256: str
    context: int
    edits: tuple[str, ...]
    files: tuple[FileMark, ...]

    def holds(self, paths: Sequence[Path]) -> bool:
        """Whether the files at ``paths`` are the recorded ones."""
        marks = {mark.name: mark for mark in self.files}
        if not marks or set(marks) != {path.name for path in paths}:
            return False
        return all(_unchanged(path, marks[path.name]) for path in paths)

    def portable(self) -> ModelRecord:
        """The record for another machine: files are known by their content alone."""
        files = tuple(FileMark(f.name, f.size, None, None, f.sha256) for f in self.files)
        return ModelRecord(**{**vars(self), "files": files})


@dataclass(frozen=True)
class CorpusKey:
    """A text and how it is cut; ``sequences`` None takes all."""

    documents_sha256: str
    tokenizer_sha256: str
    context: int
    bos: str
    sequences: int | None


class Records:
    """The notes below one directory; with ``root`` None nothing is kept or found."""

    def __init__(self, root: Path | None) -> None:
        self.root = root

    def model(self, key: ModelKey) -> ModelRecord | None:
        """How a model opened, whether or not its files are still the same."""
        found = self._read("models", asdict(key))
        return None if found is None else _model_record(key, found)

    def save_model(self, record: ModelRecord) -> None:
        """Keep how a model opened."""
        self._write("models", asdict(record.key), asdict(record))

    def models(self) -> Iterator[ModelRecord]:
        """Every kept record, in no particular order."""
        for path in sorted(self.root.glob(f"{KNOWN}/models/*.json")) if self.root else ():
            found = _load(path)
            if found is not None:
                yield _model_record(ModelKey(**found["key"]), found)

    def corpus(self, key: CorpusKey) -> str | None:
        """The digest of the tokens, as in a result's provenance."""
        found = self._read("corpora", asdict(key))
        return None if found is None else str(found["corpus_sha256"])

    def save_corpus(self, key: CorpusKey, corpus_sha256: str) -> None:
        """Keep which tokens a text became."""
        content = {**asdict(key), "corpus_sha256": corpus_sha256}
        self._write("corpora", asdict(key), content)

    def cosine(self, a: str, b: str) -> float | None:
        """The weight cosine of two models by their weights' digests; NaN where none exists."""
        found = self._read("cosines", {"weights": sorted((a, b))})
        if found is None:
            return None
        return math.nan if found["cosine"] is None else float(found["cosine"])

    def save_cosine(self, a: str, b: str, cosine: float) -> None:
        """Keep the weight cosine of two models."""
        key = {"weights": sorted((a, b))}
        self._write("cosines", key, {**key, "cosine": None if math.isnan(cosine) else cosine})

    def _path(self, kind: str, key: Mapping[str, Any]) -> Path | None:
        return None if self.root is None else self.root / KNOWN / kind / f"{digest(key)[:32]}.json"

    def _read(self, kind: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
        path = self._path(kind, key)
        return None if path is None else _load(path)

    def _write(self, kind: str, key: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        path = self._path(kind, key)
        if path is None:
            return
        with atomic_file(path) as temporary:
            text = json.dumps(content, indent=2, sort_keys=True) + "\n"
            temporary.write_text(text, encoding="utf-8")


def model_key(source: str, *, dtype: str | None, revision: str | None, convert: bool) -> ModelKey:
    """The key of a source as it is opened; a directory is known by its absolute path."""
    path = Path(source).expanduser()
    return ModelKey(str(path.resolve()) if path.is_dir() else source, dtype, revision, convert)


def mark_files(paths: Sequence[Path]) -> tuple[FileMark, ...]:
    """The files as they are now."""
    stats = {path: path.stat() for path in paths}
    hashed = sum(stat.st_size for stat in stats.values()) <= HASHED_BYTES
    return tuple(
        FileMark(
            path.name,
            stat.st_size,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
            content_sha256(path) if hashed else None,
        )
        for path, stat in stats.items()
    )


def content_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, remembered for as long as size and times stay the same."""
    stat = path.stat()
    return _content_sha256(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=256)
def _content_sha256(path: Path, _size: int, _mtime_ns: int, _ctime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unchanged(path: Path, mark: FileMark) -> bool:
    stat = path.stat()
    if stat.st_size != mark.size:
        return False
    if (stat.st_mtime_ns, stat.st_ctime_ns) == (mark.mtime_ns, mark.ctime_ns):
        return True
    return mark.sha256 is not None and content_sha256(path) == mark.sha256


def _load(path: Path) -> dict[str, Any] | None:
    """A note, or None: one that is missing or damaged says nothing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _model_record(key: ModelKey, found: Mapping[str, Any]) -> ModelRecord:
    return ModelRecord(
        key=key,
        weights_sha256=found["weights_sha256"],
        config_sha256=found["config_sha256"],
        tokenizer_sha256=found["tokenizer_sha256"],
        context=found["context"],
        edits=tuple(found["edits"]),
        files=tuple(FileMark(**mark) for mark in found["files"]),
    )
