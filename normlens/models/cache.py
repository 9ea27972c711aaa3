"""The directory for files that can be made again. No torch."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from normlens.errors import OutputError

VARIABLE = "NORMLENS_CACHE"


def cache_directory(*parts: str) -> Path:
    """A directory below the user's cache, made if need be; ``NORMLENS_CACHE`` moves it.

    Raises:
        OutputError: it cannot be made.
    """
    root = os.environ.get(VARIABLE) or platformdirs.user_cache_dir("normlens")
    path = Path(root).joinpath(*parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot write to the cache {path}: {error.strerror}; set {VARIABLE} to a directory "
            "that can be written"
        ) from error
    return path
