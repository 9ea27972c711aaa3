"""Models that come as a quantised GGUF file inside an installed Python package.

The package is never imported: its files are found through its metadata. The weights are
dequantised once, to float32, into a cache directory in the Hugging Face layout;
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
    _require_reader()
    try:
        file_type = _file_type(gguf)
        with quiet_transformers():
            options = {"gguf_file": gguf.name, "local_files_only": True}
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent, dtype=torch.float32, **options
            )
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **options)
    except Exception as error:  # a damaged GGUF file raises nearly anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CorruptModel(
            f"{gguf} cannot be dequantised ({reason}); reinstall it: {packaged.install}"
        ) from error
    card: dict[str, object] = {
        "name": packaged.id,
        "purpose": packaged.description,
        "licence": packaged.licence,
        "quantised_from": f"{file_type} GGUF",
        "file": gguf.name,
    }
    # The weights are plain float32 now; the saved config must not announce packed ones.
    model.config.__dict__.pop("quantization_config", None)
    write_model(model, tokenizer, target, card=card, storage=torch.float32)


def _require_reader() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise LoadError("reading GGUF files needs the package gguf: pip install gguf")


def _file_type(gguf: Path) -> str:
    """The quantisation the file declares, such as ``Q4_1``."""
    from gguf import GGUFReader, LlamaFileType

    field = GGUFReader(gguf).get_field("general.file_type")
    if field is None:
        return "quantised"
    return LlamaFileType(int(field.contents())).name.removeprefix("MOSTLY_")
