"""What one session looks at: one frozen object, and its form in the URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from normlens.catalog import ALL
from normlens.figures.selecting import Selection
from normlens.workbench.choices import CorpusChoice, ModelChoice

Depth = Literal["absolute", "relative"]
SLOT_LETTERS = "ABCD"
DTYPES = ("float32", "bfloat16", "float16", "float64")
BUNDLED = "books"
_ANALYSES = frozenset(analysis.name for analysis in ALL)
_UPLOAD = re.compile(r"[0-9a-f]{12}/[\w.-]+\.(txt|jsonl)")
_SNAPSHOT = re.compile(r"[0-9a-f]{12}")
_NUMBERS = {
    "layer": "layer",
    "head": "head",
    "token": "position",
    "dim": "dimension",
    "neuron": "neuron",
}


@dataclass(frozen=True)
class View:
    """Everything a permalink restores.

    Attributes:
        slots: models side by side; the first is the reference.
        corpus: the text that corpus analyses read.
        selection: layer, head, token, site, dimension, neuron.
        depth: whether layers of models of unequal depth stand at their number or share.
        snapshot: id of a stored prompt, empty where there is none; the prompt itself is
            never in a URL.
        focus: analysis that a page with several shows; empty for its first.
    """

    slots: tuple[ModelChoice, ...]
    corpus: CorpusChoice = field(default_factory=CorpusChoice)
    selection: Selection = field(default_factory=Selection)
    depth: Depth = "absolute"
    snapshot: str = ""
    focus: str = ""


def to_params(view: View) -> dict[str, str]:
    """The view as query parameters; what has its default is left out, but for the models."""
    params = {
        letter.lower(): _model_text(choice)
        for letter, choice in zip(SLOT_LETTERS, view.slots, strict=False)
    }
    default = CorpusChoice()
    corpus = {
        "text": corpus_text(view.corpus),
        "n": str(view.corpus.sequences),
        "context": "" if view.corpus.context is None else str(view.corpus.context),
        "bos": view.corpus.bos,
    }
    plain = {"text": default.text, "n": str(default.sequences), "context": "", "bos": default.bos}
    params |= {key: value for key, value in corpus.items() if value != plain[key]}
    for key, name in _NUMBERS.items():
        number = getattr(view.selection, name)
        if number is not None:
            params[key] = str(number)
    if view.selection.site is not None:
        params["site"] = view.selection.site
    if view.depth != "absolute":
        params["depth"] = view.depth
    if view.snapshot:
        params["run"] = view.snapshot
    if view.focus:
        params["show"] = view.focus
    return params


def from_params(params: Mapping[str, str], view: View, uploads: Path) -> View:
    """The view that query parameters describe; what they do not name is as in ``view``.

    What cannot be read is left out: a link is no place for errors. A text is ``books`` or the
    name of a file under ``uploads``, never a path.
    """
    slots = tuple(
        choice
        for letter in SLOT_LETTERS.lower()
        if (choice := _model(params.get(letter, ""))) is not None
    )
    selection = view.selection
    for key, name in _NUMBERS.items():
        if (number := _number(params.get(key, ""))) is not None:
            selection = replace(selection, **{name: number})
    if params.get("site"):
        selection = replace(selection, site=params["site"][:80])
    snapshot = params.get("run", "")
    return View(
        slots=tuple(dict.fromkeys(slots)) or view.slots,
        corpus=_corpus(params, view.corpus, uploads),
        selection=selection,
        depth="relative" if params.get("depth") == "relative" else view.depth,
        snapshot=snapshot if _SNAPSHOT.fullmatch(snapshot) else view.snapshot,
        focus=params["show"] if params.get("show") in _ANALYSES else view.focus,
    )


def corpus_text(corpus: CorpusChoice) -> str:
    """The text's name: ``books``, or the two last parts of an upload's path."""
    return corpus.text if corpus.text == BUNDLED else "/".join(Path(corpus.text).parts[-2:])


def _corpus(params: Mapping[str, str], corpus: CorpusChoice, uploads: Path) -> CorpusChoice:
    sequences = _number(params.get("n", ""))
    context = _number(params.get("context", ""))
    name = params.get("text", "")
    if name == BUNDLED:
        corpus = replace(corpus, text=BUNDLED)
    elif _UPLOAD.fullmatch(name) and (uploads / name).is_file():
        corpus = replace(corpus, text=str(uploads / name))
    if sequences is not None:
        corpus = replace(corpus, sequences=sequences)
    if context is not None and context >= 2:
        corpus = replace(corpus, context=context)
    if params.get("bos") in ("prepend", "none"):
        corpus = replace(corpus, bos="none" if params["bos"] == "none" else "prepend")
    return corpus


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None


def _model_text(choice: ModelChoice) -> str:
    parts = [choice.source]
    if choice.device != "cpu":
        parts.append(f"device={choice.device}")
    if choice.dtype is not None:
        parts.append(f"dtype={choice.dtype}")
    if choice.revision is not None:
        parts.append(f"revision={choice.revision}")
    if choice.convert:
        parts.append("convert")
    return ";".join(parts)


def _model(text: str) -> ModelChoice | None:
    source, *options = text.split(";")
    if not source or len(text) > 300:
        return None
    said = {key: value for key, _, value in (option.partition("=") for option in options)}
    return ModelChoice(
        source=source,
        device=said.get("device") or "cpu",
        dtype=said.get("dtype") if said.get("dtype") in DTYPES else None,
        revision=said.get("revision") or None,
        convert="convert" in said,
    )
