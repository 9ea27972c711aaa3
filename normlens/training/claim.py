"""Keeping a run directory to one process, with a lock that ends when the process does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from normlens.errors import OutputError


@contextmanager
def claimed(directory: Path, lock: str) -> Iterator[bool]:
    """Make ``directory`` and claim it while the block runs; yields whether it was free.

    Args:
        directory: of a run.
        lock: name of the lock file in it.

    Raises:
        OutputError: the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        held = FileLock(directory / lock)
        held.acquire(timeout=0)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise OutputError(
            f"cannot write to {directory}: {error.strerror}; choose another --out"
        ) from error
    try:
        yield True
    finally:
        held.release()
