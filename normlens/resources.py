"""Where the bundled data, the app and its help live: in the installed package, else beside it."""

from __future__ import annotations

from pathlib import Path

from normlens.errors import LoadError

_PACKAGE = Path(__file__).resolve().parent


def data_path(*parts: str) -> Path:
    """Path of something under ``data/``; the last part need not exist.

    Raises:
        LoadError: the installation carries no ``data/`` directory.
    """
    return _resource("data").joinpath(*parts)


def app_path(*parts: str) -> Path:
    """Path of something under ``app/``.

    Raises:
        LoadError: the installation carries no ``app/`` directory.
    """
    return _resource("app").joinpath(*parts)


def docs_path(*parts: str) -> Path:
    """Path of a page of the documentation that the app shows.

    Raises:
        LoadError: the installation carries no ``docs/`` directory.
    """
    return _resource("docs").joinpath(*parts)


def _resource(name: str) -> Path:
    for root in (_PACKAGE / "_bundled" / name, _PACKAGE.parent / name):
        if root.is_dir():
            return root
    raise LoadError(f"this installation of normlens has no {name}/ directory; reinstall it")
