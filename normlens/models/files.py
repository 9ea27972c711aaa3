"""The files that decide what a source opens as, found without opening it. No torch."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from normlens.models.listing import PACKAGED, PART, Packaged, bundled_directories

UNTRAINED = "untrained:"
DECISIVE = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
"""What of a model directory decides its weights, config and tokens."""


def deciding_files(source: str, revision: str | None = None) -> tuple[Path, ...]:
    """Files of a bundled or packaged model, a directory, or a hub model in the cache.

    Args:
        source: as :func:`normlens.models.open_model` takes it.
        revision: of a hub model.

    Returns:
        Sorted paths; empty where nothing of the source is on this machine.
    """
    if source.startswith(UNTRAINED):
        return deciding_files(source.removeprefix(UNTRAINED).partition("@")[0], revision)
    bundled = bundled_directories().get(source)
    if bundled is not None:
        return _of_directory(bundled)
    packaged = next((row for row in PACKAGED if row.id == source), None)
    if packaged is not None:
        return _of_package(packaged)
    path = Path(source).expanduser()
    if path.is_dir():
        return _of_directory(path.resolve())
    return _of_hub(source, revision)


def _of_directory(path: Path) -> tuple[Path, ...]:
    return tuple(sorted({file for pattern in DECISIVE for file in path.glob(pattern)}))


def _of_package(row: Packaged) -> tuple[Path, ...]:
    try:
        packages = [distribution(name) for name in (row.distribution, *row.parts)]
    except PackageNotFoundError:
        return ()
    return tuple(
        sorted(
            Path(str(package.locate_file(file)))
            for package in packages
            for file in package.files or ()
            if file.suffix in (".gguf", ".safetensors") or PART.fullmatch(file.name)
        )
    )


def _of_hub(source: str, revision: str | None) -> tuple[Path, ...]:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(source, "config.json", revision=revision)
    except HFValidationError:
        return ()
    return _of_directory(Path(found).parent) if isinstance(found, str) else ()
