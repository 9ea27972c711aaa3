"""``data/MANIFEST.json``: where every file under ``data/`` comes from.

``python -m normlens.training.manifest --books BOOKS`` writes it; without ``--books`` what
is known about the books is kept. A model enters with what its own card says, after the card
was held against the recipe, the books and the ancestor that lie there now.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from normlens.atomic import atomic_file
from normlens.errors import CorruptModel, StoreMismatch, UsageError
from normlens.resources import data_path
from normlens.training.recipe import Recipe, load_recipe
from normlens.training.split import corpus_hash, load_split
from normlens.training.sweep import resolved

NAME = "MANIFEST.json"
CARD = "normlens.json"
SCHEMA_VERSION = 1
OWN = "Apache-2.0"
PUBLIC_DOMAIN = "public domain (out of copyright in the USA)"
PREPARE = "normlens prepare-corpus BOOKS --out data"
BOOK_RULE = (
    "Project Gutenberg, front matter and markup removed, one paragraph a line, quotes and dashes "
    "in ASCII. The books of corpus.toml are held out or withheld; training uses the rest."
)


@dataclass(frozen=True)
class Origin:
    """Where the files of one directory come from; ``command`` is None for hand-written ones."""

    source: str
    licence: str
    command: str | None = None


ORIGINS = {
    "README.md": Origin("written by hand", OWN),
    "corpus.toml": Origin("written by hand", OWN),
    "recipes": Origin("written by hand", OWN),
    "text": Origin("excerpts of the held-out books", PUBLIC_DOMAIN, PREPARE),
    "tokenizer": Origin("learnt from the training books", OWN, PREPARE),
    "tokenizer-512": Origin("learnt from the training books", OWN, PREPARE),
    "results": Origin("every analysis on the bundled pair", OWN, "make results"),
    "prompts": Origin(
        "made from templates", OWN, "python -m normlens.training.prompts data/prompts"
    ),
}
"""By first part of the path; models say it themselves."""


def build_manifest(root: Path, books: Path | None) -> dict[str, Any]:
    """The manifest of what lies under ``root`` now.

    Args:
        root: the data directory.
        books: directory of the books; None keeps the entry of the present manifest.

    Raises:
        UsageError: a file belongs to no known origin, or the books were never recorded.
        StoreMismatch: a model was made by another recipe, from other books or from another
            ancestor than those that lie there.
        BadText: no usable books.
    """
    corpus = _books(root, books)
    directories = sorted(path.parent for path in root.glob(f"models/*/{CARD}"))
    models = {path.name: _model(path, corpus["sha256"]) for path in directories}
    return {
        "schema_version": SCHEMA_VERSION,
        "books": corpus,
        "models": models,
        "files": {path: _file(root, path, models) for path in listed_files(root)},
    }


def write_manifest(root: Path, books: Path | None) -> Path:
    """Write :func:`build_manifest` to ``root/MANIFEST.json`` and return that path.

    Raises:
        OutputError: it cannot be written; other errors as :func:`build_manifest`.
    """
    content = json.dumps(build_manifest(root, books), indent=2, ensure_ascii=False) + "\n"
    with atomic_file(root / NAME) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return root / NAME


def manifest_problems(root: Path) -> list[str]:
    """What differs between ``root`` and its manifest, one line each; empty when nothing."""
    files = _read(root / NAME)["files"]
    present = set(listed_files(root))
    changed = [
        path
        for path in sorted(present & set(files))
        if _sha256(root / path) != files[path]["sha256"]
    ]
    return [
        *(f"{path} is not in {NAME}" for path in sorted(present - set(files))),
        *(f"{path} is in {NAME} but missing" for path in sorted(set(files) - present)),
        *(f"{path} differs from its digest in {NAME}" for path in changed),
    ]


def listed_files(root: Path) -> list[str]:
    """Relative paths of the files that a manifest of ``root`` lists: all but itself and hidden."""
    relative = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    shown = (path for path in relative if not any(part.startswith(".") for part in path.parts))
    return sorted(path.as_posix() for path in shown if path.as_posix() != NAME)


def _file(root: Path, path: str, models: dict[str, Any]) -> dict[str, Any]:
    top, *rest = path.split("/")
    if top == "models" and rest[0] in models:
        model = models[rest[0]]
        origin = Origin(f"trained by recipe {rest[0]}", OWN, model["command"])
    elif top in ORIGINS:
        origin = ORIGINS[top]
    else:
        raise UsageError(f"data file {path} has no known origin; add one to {__name__}.ORIGINS")
    return {
        "bytes": (root / path).stat().st_size,
        "sha256": _sha256(root / path),
        "source": origin.source,
        "licence": origin.licence,
        "command": origin.command,
    }


def _books(root: Path, books: Path | None) -> dict[str, Any]:
    if books is None:
        if not (root / NAME).is_file():
            raise UsageError(f"{root / NAME} does not exist yet; give --books to record the corpus")
        return _read(root / NAME)["books"]
    split = load_split()
    training = split.training_books(books)
    return {
        "name": split.name,
        "source": BOOK_RULE,
        "licence": PUBLIC_DOMAIN,
        "training": [int(path.stem) for path in training],
        "held_out": sorted(split.held_out),
        "withheld": sorted(split.withheld),
        "excerpt_bytes": split.excerpt_bytes,
        "skip_fraction": split.skip_fraction,
        "sha256": corpus_hash(training),
        "versions": {name: version(name) for name in ("tokenizers", "transformers")}
        | {"python": platform.python_version()},
    }


def _model(path: Path, corpus: str) -> dict[str, Any]:
    card = _read(path / CARD)
    ancestor = card["ancestor"]
    expected = {
        "recipe_sha256": _recipe_of(path.name, card).digest(),
        "corpus_sha256": corpus,
        "ancestor_sha256": ancestor
        and corpus_hash(sorted((path.parent / ancestor).glob("*.safetensors"))),
    }
    for field, value in expected.items():
        if card[field] != value:
            raise StoreMismatch(
                f"model {path.name} has {field} {card[field]}, and what lies there now has "
                f"{value}; train it again: {card['command']}"
            )
    return {key: value for key, value in card.items() if key not in ("name", "purpose")}


def _recipe_of(name: str, card: dict[str, Any]) -> Recipe:
    """The bundled recipe, with the rate and the seed that a queue chose for the model."""
    recipe = load_recipe(name)
    if "sweep" not in card:
        return recipe
    return resolved(recipe, lr=card["lr"], seed=card["seed"])


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptModel(f"cannot read {path} as JSON: {error}; make it again") from error


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _main() -> None:
    parser = argparse.ArgumentParser(description="Write data/MANIFEST.json.")
    parser.add_argument("--books", type=Path, help="directory of <gutenberg id>.txt")
    print(write_manifest(data_path(), parser.parse_args().books))


if __name__ == "__main__":
    _main()
