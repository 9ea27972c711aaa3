"""What a model directory says about itself: its config, and where it comes from. No torch.

Provenance has two sources: ``normlens.json``, written by :mod:`normlens.models.export`, and
the metadata block of a Hugging Face README.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlens.errors import CorruptModel, ModelNotFound

CARD = "normlens.json"


@dataclass(frozen=True)
class Card:
    """Provenance of a model directory; None where it says nothing."""

    name: str | None = None
    description: str | None = None
    licence: str | None = None
    quantised_from: str | None = None
    ancestor: str | None = None
    ancestor_sha256: str | None = None


def read_config(path: Path) -> dict[str, Any]:
    """config.json of a model directory, with a ``model_type``.

    Raises:
        ModelNotFound: no such directory, or it has no config.json.
        CorruptModel: not a JSON object, or without a model type.
    """
    if not path.is_dir():
        raise ModelNotFound(f"directory {path} does not exist")
    file = path / "config.json"
    if not file.is_file():
        raise ModelNotFound(f"{path} has no config.json; give the directory of a saved model")
    config = read_json(file)
    if not isinstance(config.get("model_type"), str):
        raise CorruptModel(f"{file} names no model_type; save the model with save_pretrained")
    return config


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        CorruptModel: the file is not one.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptModel(f"{file} is not readable JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise CorruptModel(f"{file} is not a JSON object; fetch it again")
    return value


def read_card(path: Path) -> Card:
    """The card of a model directory; an empty one where there is no ``normlens.json``.

    Raises:
        CorruptModel: a card is there but cannot be read.
    """
    file = path / CARD
    if not file.is_file():
        return Card(licence=_readme_licence(path))
    texts = {key: str(value) for key, value in read_json(file).items() if value is not None}
    return Card(
        name=texts.get("name"),
        description=texts.get("purpose"),
        licence=texts.get("licence") or _readme_licence(path),
        quantised_from=texts.get("quantised_from"),
        ancestor=texts.get("ancestor"),
        ancestor_sha256=texts.get("ancestor_sha256"),
    )


def _readme_licence(path: Path) -> str | None:
    readme = path / "README.md"
    if not readme.is_file():
        return None
    from huggingface_hub.repocard import metadata_load

    try:
        metadata = metadata_load(readme)
    except Exception:  # YAML written by hand: a licence that cannot be read is not known
        return None
    licence = (metadata or {}).get("license")
    return None if licence is None else str(licence)
