"""Models that come as a quantised GGUF file inside an installed Python package.

The package is never imported: its files are found through its metadata. The weights are
dequantised once, to float32, into a cache directory in the Hugging Face layout.
"""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer

from normlens.atomic import atomic_directory
from normlens.errors import CorruptModel, LoadError, ModelNotFound
from normlens.models.cache import cache_directory
from normlens.models.listing import PACKAGED, Packaged
from normlens.models.metadata import CARD
from normlens.models.openers.directory import open_directory
from normlens.models.openers.request import Opened, Request
from normlens.models.quiet import quiet_transformers

LAYOUT = "v1"
"""Part of the cache key; changes when the way of dequantising does."""


def open_package(request: Request) -> Opened | None:
    """A packaged model, by its id.

    Raises:
        ModelNotFound: the package is not installed.
        CorruptModel: it holds no usable GGUF file.
        OutputError: the cache cannot be written.
    """
    packaged = next((row for row in PACKAGED if row.id == request.source), None)
    if packaged is None:
        return None
    try:
        installed = distribution(packaged.distribution)
    except PackageNotFoundError as error:
        raise ModelNotFound(
            f"{packaged.id} comes with the package {packaged.distribution}, which is not "
            f"installed: {packaged.install}"
        ) from error
    path = _dequantised(packaged, installed)
    source = f"package:{packaged.distribution} {installed.version}"
    opened = open_directory(request, path, name=packaged.id, source=source)
    return dataclasses.replace(opened, revision=installed.version)


def _dequantised(packaged: Packaged, installed: Distribution) -> Path:
    gguf, digest = _gguf_file(packaged, installed)
    cache = cache_directory("models")
    target = cache / f"{packaged.id}-{digest[:12]}-{LAYOUT}"
    with FileLock(cache / f".{target.name}.lock"):
        if not target.is_dir():
            _dequantise(packaged, gguf, target)
    return target


def _gguf_file(packaged: Packaged, installed: Distribution) -> tuple[Path, str]:
    for file in installed.files or ():
        path = Path(str(installed.locate_file(file)))
        if file.suffix == ".gguf" and path.is_file():
            digest = file.hash.value if file.hash is not None else installed.version
            return path, digest.replace("_", "-")
    raise CorruptModel(
        f"the installed package {packaged.distribution} holds no GGUF file; "
        f"reinstall it: {packaged.install}"
    )


def _dequantise(packaged: Packaged, gguf: Path, target: Path) -> None:
    card = {
        "name": packaged.id,
        "purpose": packaged.description,
        "licence": packaged.licence,
        "quantised_from": f"{_file_type(gguf)} GGUF",
        "file": gguf.name,
    }
    with atomic_directory(target) as temporary:
        try:
            with quiet_transformers():
                model = AutoModelForCausalLM.from_pretrained(
                    gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
                )
                tokenizer = AutoTokenizer.from_pretrained(
                    gguf.parent, gguf_file=gguf.name, local_files_only=True
                )
        except Exception as error:  # a damaged GGUF file raises nearly anything
            raise CorruptModel(
                f"{gguf} cannot be dequantised ({type(error).__name__}: {error}); "
                f"reinstall it: {packaged.install}"
            ) from error
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        text = json.dumps(card, indent=2, sort_keys=True) + "\n"
        (temporary / CARD).write_text(text, encoding="utf-8")


def _file_type(gguf: Path) -> str:
    """The quantisation the file declares, such as ``Q4_1``."""
    try:
        from gguf import GGUFReader, LlamaFileType
    except ImportError as error:
        raise LoadError("reading GGUF files needs the package gguf: pip install gguf") from error
    field = GGUFReader(gguf).get_field("general.file_type")
    if field is None:
        return "quantised"
    return LlamaFileType(int(field.contents())).name.removeprefix("MOSTLY_")
