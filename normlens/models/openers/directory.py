"""Local directories, and the bundled models, which are directories with an id."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from normlens.errors import ModelNotFound
from normlens.models.checkpoint import load_checkpoint_directory
from normlens.models.lens import Lineage
from normlens.models.listing import BUNDLED_LICENCE, bundled_directories
from normlens.models.metadata import read_card
from normlens.models.openers.request import Opened, Request
from normlens.models.tokenizers import load_tokenizer
from normlens.models.untrained import untrained_model


def open_bundled(request: Request) -> Opened | None:
    """A bundled model, by its id."""
    if not isinstance(request.source, str):
        return None
    path = bundled_directories().get(request.source)
    if path is None:
        return None
    opened = open_directory(request, path, name=request.source, source=f"bundled:{request.source}")
    return dataclasses.replace(opened, licence=opened.licence or BUNDLED_LICENCE)


def open_local(request: Request) -> Opened | None:
    """A directory: any Path, and a string that is one or is written like one."""
    source = request.source
    if isinstance(source, Path):
        path = source
    elif isinstance(source, str) and _is_local(source):
        path = Path(source).expanduser()
    else:
        return None
    if path.is_file():
        raise ModelNotFound(f"{path} is a file; give the directory of a saved model")
    name = path.resolve().name
    return open_directory(request, path, name=name, source=f"directory:{path}")


def open_directory(request: Request, path: Path, *, name: str, source: str) -> Opened:
    """Load a model directory in either layout, with what its card says; or draw its weights.

    Raises:
        LoadError: as :func:`~normlens.models.checkpoint.load_checkpoint_directory` and
            :func:`~normlens.models.tokenizers.load_tokenizer`.
    """
    if request.seed is not None:
        model = untrained_model(path, request.stored_dtype, request.seed)
        return Opened(model, load_tokenizer(path, request.tokenizer), name, source, Lineage())
    model = load_checkpoint_directory(path, request.stored_dtype)
    card = read_card(path)
    return Opened(
        model=model,
        tokenizer=load_tokenizer(path, request.tokenizer),
        name=name,
        source=source,
        lineage=Lineage(card.ancestor, card.ancestor_sha256),
        licence=card.licence,
        quantised_from=card.quantised_from,
    )


def _is_local(source: str) -> bool:
    """Whether a string means a path: it exists, looks like one, or its parent exists."""
    path = Path(source).expanduser()
    looks_local = source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source
    return path.exists() or looks_local or ("/" in source and path.parent.is_dir())
