"""Models that installed Python packages carry, as a quantised GGUF file or as a directory.

The packages are never imported: their files are found through their metadata. A GGUF file
is dequantised once, to float32, into a cache directory in the Hugging Face layout;
transformers shows the progress of that on stderr.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer

from normlens.errors import CorruptModel, LoadError, ModelNotFound
from normlens.models.cache import cache_directory
from normlens.models.export import write_model
from normlens.models.listing import PACKAGED, Packaged
from normlens.models.openers.directory import open_directory
from normlens.models.openers.gguf_file import StoredGguf, file_type, stored_gguf, whole_file
from normlens.models.openers.request import Opened, Request
from normlens.models.quiet import quiet_transformers

LAYOUT = "v1"
"""Part of the cache key; changes when the way of dequantising does."""


def open_package(request: Request) -> Opened | None:
    """A packaged model, by its id.

    Raises:
        ModelNotFound: the package is not installed.
        CorruptModel: it holds no usable weights.
        OutputError: the cache cannot be written.
    """
    packaged = next((row for row in PACKAGED if row.id == request.source), None)
    if packaged is None:
        return None
    try:
        installed = distribution(packaged.distribution)
        path = (
            _directory(packaged, installed)
            if packaged.weights == "directory"
            else _dequantised(packaged, stored_gguf(packaged, installed))
        )
    except PackageNotFoundError as error:
        raise ModelNotFound(
            f"{packaged.id} comes with the package {error.name}, which is not "
            f"installed: {packaged.install}"
        ) from error
    source = f"package:{packaged.distribution} {installed.version}"
    opened = open_directory(request, path, name=packaged.id, source=source)
    return dataclasses.replace(opened, revision=installed.version, licence=packaged.licence)


def _directory(packaged: Packaged, installed: Distribution) -> Path:
    """The directory that holds config and weights."""
    files = [Path(str(installed.locate_file(file))) for file in installed.files or ()]
    for file in files:
        if file.suffix == ".safetensors" and file.with_name("config.json").is_file():
            return file.parent
    raise CorruptModel(
        f"the installed package {packaged.distribution} holds no model directory; "
        f"reinstall it: {packaged.install}"
    )


def _dequantised(packaged: Packaged, stored: StoredGguf) -> Path:
    cache = cache_directory("models")
    target = cache / f"{packaged.id}-{stored.key[:12]}-{LAYOUT}"
    with FileLock(cache / f".{target.name}.lock"):
        if not target.is_dir():
            _require_reader()
            _dequantise(packaged, stored, target)
    return target


def _dequantise(packaged: Packaged, stored: StoredGguf, target: Path) -> None:
    try:
        with whole_file(stored, target.parent) as gguf, quiet_transformers():
            quantisation = file_type(gguf)
            options = {"gguf_file": gguf.name, "local_files_only": True}
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent, dtype=torch.float32, **options
            )
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **options)
    except Exception as error:  # a damaged GGUF file raises nearly anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CorruptModel(
            f"{stored.name} of {packaged.distribution} cannot be dequantised ({reason}); "
            f"reinstall it: {packaged.install}"
        ) from error
    card: dict[str, object] = {
        "name": packaged.id,
        "purpose": packaged.description,
        "licence": packaged.licence,
        "quantised_from": f"{quantisation} GGUF",
        "file": stored.name,
    }
    # The weights are plain float32 now; the saved config must not announce packed ones.
    model.config.__dict__.pop("quantization_config", None)
    write_model(model, tokenizer, target, card=card, storage=torch.float32)


def _require_reader() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise LoadError("reading GGUF files needs the package gguf: pip install gguf")
