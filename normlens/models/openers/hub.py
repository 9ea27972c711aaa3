"""Models of the Hugging Face hub; the only opener that may use the network."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from normlens.errors import ModelNotFound
from normlens.models.listing import HUB_NAMES
from normlens.models.openers.directory import open_directory
from normlens.models.openers.request import Opened, Request

WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json")
OTHER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "README.md",
)


def open_hub(request: Request) -> Opened | None:
    """``owner/name`` or one of :data:`~normlens.models.listing.HUB_NAMES`, at ``revision``.

    Downloads safetensors (unless weights are drawn), config and tokenizer files, no code and
    no pickled weights, into the hub's own cache. The revision that was found is kept as a
    commit hash.

    Raises:
        ModelNotFound: no such repository or revision, or it cannot be reached.
        LoadError: as for a local directory.
    """
    source = request.source
    if not isinstance(source, str):
        return None
    if source not in HUB_NAMES and not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        return None
    files = OTHER_FILES if request.seed is not None else (*WEIGHT_FILES, *OTHER_FILES)
    path = _download(source, request.revision, files)
    opened = open_directory(request, path, name=source, source=f"hub:{source}")
    return dataclasses.replace(opened, revision=path.name)


def _download(source: str, revision: str | None, files: Sequence[str]) -> Path:
    at = "" if revision is None else f" at revision {revision}"
    try:
        return Path(
            snapshot_download(
                source, revision=revision, allow_patterns=list(files), ignore_patterns=["*/*"]
            )
        )
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"the hub has no model {source}{at}, or it is not public; check the id, or give a "
            "local directory"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelNotFound(
            f"{source}{at} is neither a local directory nor in the hub cache, and the hub "
            "cannot be reached; check the name or the network"
        ) from error
