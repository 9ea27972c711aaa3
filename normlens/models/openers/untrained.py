"""``untrained:<source>``: the architecture of another source, before training."""

from __future__ import annotations

import dataclasses
import re

from normlens.errors import ModelNotFound
from normlens.models.openers.directory import open_bundled, open_local
from normlens.models.openers.hub import open_hub
from normlens.models.openers.package import open_package
from normlens.models.openers.request import Opened, Request

PREFIX = "untrained:"
OPENERS = (open_bundled, open_package, open_local, open_hub)


def open_untrained(request: Request) -> Opened | None:
    """Config and tokenizer of a source, weights drawn anew: ``untrained:books-ln``.

    A number after ``@`` is the seed, 0 without one: ``untrained:books-ln@3``. The model has
    no ancestor, no licence and the name it was asked for.

    Raises:
        ModelNotFound: nothing at the source.
        LoadError: as for the source, or its scales are fixed ones.
    """
    if not isinstance(request.source, str) or not request.source.startswith(PREFIX):
        return None
    source, seed = _parse(request.source.removeprefix(PREFIX))
    wanted = dataclasses.replace(request, source=source, seed=seed)
    for opener in OPENERS if source else ():
        opened = opener(wanted)
        if opened is not None:
            suffix = f"@{seed}" if seed else ""
            return dataclasses.replace(
                opened,
                name=f"{PREFIX}{opened.name}{suffix}",
                source=f"{PREFIX}{opened.source}@{seed}",
                licence=None,
            )
    raise ModelNotFound(
        f"no model {source!r} to take {request.source!r} from; give the id, directory or hub id "
        "of a stored model; for one in memory, build it from its config: type(model)(model.config)"
    )


def _parse(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.+)@(\d+)", text)
    return (text, 0) if match is None else (match[1], int(match[2]))
