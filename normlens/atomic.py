"""Files and directories appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normlens.errors import OutputError


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path``; on success it replaces ``path``.

    On an exception the temporary file is removed and ``path`` is untouched.

    Raises:
        OutputError: the parent directory cannot be created or written.
    """
    temporary = _temporary_sibling(path)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling directory; on success it is renamed to ``path``.

    Args:
        path: the directory to create.
        replace: whether an existing directory may be replaced.

    Raises:
        OutputError: ``path`` exists and ``replace`` is false, or its parent cannot be written.
    """
    if path.exists() and not replace:
        raise OutputError(f"output {path} exists already; choose another directory or pass --force")
    temporary = _temporary_sibling(path)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            retired = _temporary_sibling(path)
            os.replace(path, retired)
            os.replace(temporary, path)
            shutil.rmtree(retired)
        else:
            os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_sibling(path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        raise OutputError(
            f"cannot write to {path.parent}: {error.strerror}; choose a writable directory"
        ) from error
    os.close(handle)
    os.unlink(name)
    return Path(name)
