"""Reading text: bundled excerpts, .txt, .jsonl, directories."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from normlens.errors import BadText
from normlens.resources import data_path

BUNDLED = {"books": ("text", "books-held-out.jsonl")}


@dataclass(frozen=True)
class Document:
    """One text; bootstrap intervals resample documents."""

    id: str
    text: str


@dataclass(frozen=True)
class Documents:
    """Texts of one corpus, in order."""

    name: str
    items: tuple[Document, ...]

    @cached_property
    def sha256(self) -> str:
        """Digest of the ids and texts, in order; the name does not enter."""
        digest = hashlib.sha256()
        for document in self.items:
            for part in (document.id, document.text):
                content = part.encode("utf-8", "surrogatepass")
                digest.update(len(content).to_bytes(8, "big") + content)
        return digest.hexdigest()


def read_documents(source: str) -> Documents:
    """Read a corpus.

    Args:
        source: ``books`` (the bundled held-out excerpts), a UTF-8 ``.txt`` file (one
            document), a ``.jsonl`` file (one object with ``text`` and optionally ``id`` a
            line), or a directory of these.

    Raises:
        BadText: nothing there, not UTF-8, empty, or a malformed line; says which.
    """
    if source in BUNDLED:
        return Documents(source, _read_file(data_path(*BUNDLED[source])))
    path = Path(source)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in (".txt", ".jsonl"))
        items = tuple(document for file in files for document in _read_file(file))
    elif path.is_file():
        items = _read_file(path)
    else:
        raise BadText(
            f"no text {source!r}; give {', '.join(BUNDLED)}, a .txt file, a .jsonl file "
            "or a directory"
        )
    if not items:
        raise BadText(f"{source} holds no .txt or .jsonl text; add some or give another --text")
    return Documents(path.name, items)


def _read_file(path: Path) -> tuple[Document, ...]:
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadText(
            f"{path} is not UTF-8 (byte {error.start}); convert it, e.g. with iconv -t UTF-8"
        ) from error
    except OSError as error:
        raise BadText(
            f"cannot read {path}: {error.strerror}; check the path and its rights"
        ) from error
    if path.suffix == ".jsonl":
        return tuple(
            _parse(line, path, n) for n, line in enumerate(content.split("\n"), 1) if line.strip()
        )
    if not content.strip():
        raise BadText(f"{path} is empty; give a text with at least two tokens")
    return (Document(path.stem, content),)


def _parse(line: str, path: Path, number: int) -> Document:
    try:
        row = json.loads(line)
        text = row["text"]
        identifier = str(row.get("id", f"{path.stem}:{number}"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadText(
            f"{path} line {number} is not a JSON object with a 'text' field; one object a line"
        ) from error
    if not isinstance(text, str) or not text.strip():
        raise BadText(f"{path} line {number}: 'text' is empty or not a string")
    return Document(identifier, text)
