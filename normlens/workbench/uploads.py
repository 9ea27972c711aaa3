"""Texts that a user uploads: checked like any other text, kept below the store. No torch."""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path

import pandas as pd

from normlens.atomic import atomic_directory
from normlens.errors import BadText
from normlens.text.documents import read_documents

LIMIT_BYTES = 20_000_000
"""Largest upload."""

SUFFIXES = (".txt", ".jsonl", ".csv")
LONGEST_NAME = 60


def keep_upload(name: str, data: bytes, store: Path) -> Path:
    """Check an upload and keep it; the same file is kept once.

    Args:
        name: of the file on the user's machine; ``.txt``, ``.jsonl`` or ``.csv``. A ``.csv``
            file has a column ``text``, optionally ``id``, and is kept as ``.jsonl``.
        data: its bytes, UTF-8.
        store: directory of everything the explorer keeps.

    Returns:
        The path to give as ``CorpusChoice.text``.

    Raises:
        BadText: too large, of another type, not UTF-8, empty or malformed; names the file and
            the line.
        OutputError: it cannot be written.
    """
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise BadText(f"{name} is no {', '.join(SUFFIXES)} file; save the text as one of these")
    if len(data) > LIMIT_BYTES:
        raise BadText(
            f"{name} has {len(data) / 1e6:,.1f} MB, the limit is {LIMIT_BYTES / 1e6:,.0f} MB; "
            "upload a part, or give the file to normlens run --text"
        )
    if suffix == ".csv":
        data, suffix = _jsonl(name, data), ".jsonl"
    file = f"{_safe(Path(name).stem)}{suffix}"
    directory = store / "uploads" / hashlib.sha256(file.encode() + b"\0" + data).hexdigest()[:12]
    path = directory / file
    if not path.is_file():
        with atomic_directory(directory, replace=True) as temporary:
            (temporary / file).write_bytes(data)
            _check(name, temporary / file)
    return path


def _check(name: str, path: Path) -> None:
    try:
        read_documents(str(path))
    except BadText as error:
        raise BadText(str(error).replace(str(path), name)) from error


def _safe(stem: str) -> str:
    return re.sub(r"[^\w.-]+", "_", stem).strip("._")[:LONGEST_NAME] or "text"


def _jsonl(name: str, data: bytes) -> bytes:
    try:
        table = pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False, encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadText(f"{name} is not UTF-8 (byte {error.start}); save it as CSV UTF-8") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        reason = " ".join(str(error).split())
        raise BadText(f"{name} is not a readable CSV file ({reason}); export it again") from error
    if "text" not in table.columns:
        columns = ", ".join(str(column) for column in table.columns[:8])
        raise BadText(f"{name} has no column 'text' (it has {columns}); name the column with texts")
    kept = [column for column in ("id", "text") if column in table.columns]
    rows = table[kept].to_dict(orient="records")
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
