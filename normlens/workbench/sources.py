"""Which models may be opened: the known ids, directories under one root, hub ids if online.

A browser never names an arbitrary path of the machine: a directory is opened only if it lies
under the model root or was named on the command line. No torch.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from normlens.errors import CorruptModel, ModelNotFound, UsageError
from normlens.models.listing import (
    HUB_NAMES,
    ModelEntry,
    directory_entry,
    known_ids,
    list_models,
)

DEEPEST = 4
"""Levels below the model root that are searched for models."""

UNTRAINED = "untrained:"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Sources:
    """The models a session may open.

    Attributes:
        model_root: directory below which model directories are found, or None.
        online: whether hub ids are allowed.
        named: sources given on the command line, allowed as they are.
    """

    model_root: Path | None = None
    online: bool = False
    named: tuple[str, ...] = ()

    def entries(self) -> tuple[ModelEntry, ...]:
        """Bundled models, those of packages, then directories, each sorted.

        A directory's id is its path relative to the model root; one that cannot be read is
        listed as not available, with the reason.
        """
        listed = sorted(list_models(), key=lambda entry: (entry.origin != "bundled", entry.id))
        return (*listed, *self._directories())

    def resolve(self, id: str) -> str:
        """What :func:`normlens.models.open_model` takes for an id.

        Raises:
            ModelNotFound: no such model, or a hub id while offline; says what to do.
            UsageError: a path outside the model root.
        """
        if id.startswith(UNTRAINED):
            inner, at, seed = id.removeprefix(UNTRAINED).partition("@")
            return f"{UNTRAINED}{self.resolve(inner)}{at}{seed}"
        if id in known_ids() or id in self.named:
            return id if id in known_ids() or not Path(id).is_dir() else str(Path(id).resolve())
        directory = self._under_root(id)
        if directory is not None:
            return str(directory)
        if HUB_ID.fullmatch(id) or id in HUB_NAMES:
            if self.online:
                return id
            raise ModelNotFound(
                f"{id} is not here and the explorer is offline; start it with --online to fetch "
                "hub models, or put a copy under --model-root"
            )
        close = difflib.get_close_matches(id, [entry.id for entry in self.entries()], n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ModelNotFound(
            f"no model {id!r}; {hint}choose one of the list, or a hub id owner/name"
        )

    def _under_root(self, id: str) -> Path | None:
        """The directory of an id; None where there is no such directory under the root."""
        path = Path(id)
        written_like_a_path = path.is_absolute() or ".." in path.parts or id.startswith("~")
        if self.model_root is None:
            if written_like_a_path:
                raise UsageError(
                    f"{id} is a path; start the explorer with --model-root and the directory "
                    "that holds your models"
                )
            return None
        root = self.model_root.resolve()
        found = (root / path).resolve()
        if not found.is_relative_to(root):
            if written_like_a_path or found.exists():
                raise UsageError(
                    f"{id} lies outside the model root {root}; move it there or start the "
                    "explorer with another --model-root"
                )
            return None
        if (found / "config.json").is_file():
            return found
        if written_like_a_path or found.is_dir():
            raise ModelNotFound(f"{found} has no config.json; give the directory of a saved model")
        return None

    def _directories(self) -> Iterator[ModelEntry]:
        if self.model_root is None or not self.model_root.is_dir():
            return
        taken = set(known_ids())
        for path in _model_directories(self.model_root):
            relative = path.relative_to(self.model_root).as_posix()
            id = f"./{relative}" if relative in taken else relative
            try:
                yield directory_entry(id, path)
            except CorruptModel as error:
                yield ModelEntry(id, "directory", "", "", 0, 0, None, False, str(error))


def _model_directories(root: Path) -> Iterator[Path]:
    """Directories with a config.json below ``root``, sorted; links are not followed."""
    for where, directories, files in os.walk(root):
        path = Path(where)
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        if path != root and "config.json" in files:
            directories.clear()
            yield path
        elif len(path.relative_to(root).parts) >= DEEPEST:
            directories.clear()
