"""What a chosen model and text are by their digests, where that is known without opening them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from normlens.errors import NormlensError
from normlens.models.files import deciding_files
from normlens.records import CorpusKey, ModelRecord, Records, model_key
from normlens.text.documents import BUNDLED, read_documents
from normlens.workbench.choices import CorpusChoice, ModelChoice
from normlens.workbench.sources import Sources

DEFAULT_CONTEXT = 512
"""Tokens per sequence where the model reads that many; as ``normlens.text.DEFAULT_CONTEXT``."""


def known_model(
    choice: ModelChoice, sources: Sources, records: Sequence[Records]
) -> ModelRecord | None:
    """The first record of the choice that holds for the files there now.

    None where the model was never opened this way, where a file of it changed since, or where
    the choice cannot be resolved.
    """
    try:
        source = sources.resolve(choice.source)
    except NormlensError:
        return None
    key = model_key(source, dtype=choice.dtype, revision=choice.revision, convert=choice.convert)
    found = [record for kept in records if (record := kept.model(key)) is not None]
    files = deciding_files(source, choice.revision) if found else ()
    return next((record for record in found if record.holds(files)), None)


def known_corpus(
    corpus: CorpusChoice, model: ModelRecord, records: Sequence[Records]
) -> str | None:
    """The digest of the tokens that a model reads of a corpus, None where it is not known.

    Raises:
        BadText: there is no such text, or it is unusable.
    """
    key = CorpusKey(
        documents_sha256=documents_sha256(corpus.text),
        tokenizer_sha256=model.tokenizer_sha256,
        context=min(corpus.context or DEFAULT_CONTEXT, model.context),
        bos=corpus.bos,
        sequences=corpus.sequences or None,
    )
    return next((found for kept in records if (found := kept.corpus(key))), None)


def documents_sha256(text: str) -> str:
    """Digest of the documents of a corpus; read again when a file's size or times change.

    Raises:
        BadText: as :func:`normlens.text.read_documents`.
    """
    return _documents_sha256(text, _marks(text))


@lru_cache(maxsize=64)
def _documents_sha256(text: str, _marks: tuple[tuple[str, int, int, int], ...]) -> str:
    return read_documents(text).sha256


def _marks(text: str) -> tuple[tuple[str, int, int, int], ...]:
    path = Path(text)
    if text in BUNDLED or not path.exists():
        return ()
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return tuple((name, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats)
