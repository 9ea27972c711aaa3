"""Opening a model and noting what it is, so that its stored results are found without torch."""

from __future__ import annotations

from normlens.models.context import context_length
from normlens.models.files import deciding_files
from normlens.models.lens import Lens
from normlens.models.opening import open_model
from normlens.records import ModelRecord, Records, mark_files, model_key
from normlens.text.encoding import tokenizer_sha256


def open_recorded(
    source: str,
    records: Records,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    revision: str | None = None,
    convert: bool = False,
    name: str | None = None,
) -> Lens:
    """:func:`~normlens.models.opening.open_model`, with a note of how the source opened.

    The files are looked at before and after: where one changed while the model was read,
    nothing is noted, since nobody knows which of the two was opened.

    Args:
        source: id, directory or hub id.
        records: where the note is kept.
        device: as for ``open_model``, like the rest.
        dtype: likewise.
        revision: likewise.
        convert: likewise.
        name: likewise.

    Raises:
        OutputError: the note cannot be written; other errors as ``open_model``.
    """
    before = mark_files(deciding_files(source, revision))
    lens = open_model(
        source, device=device, dtype=dtype, revision=revision, convert=convert, name=name
    )
    after = mark_files(deciding_files(source, revision))
    # A hub model that was not in the cache had no files before.
    if after and before in ((), after):
        tokenizer = lens.tokenizer
        records.save_model(
            ModelRecord(
                key=model_key(source, dtype=dtype, revision=revision, convert=convert),
                weights_sha256=lens.identity.weights_sha256,
                config_sha256=lens.identity.config_sha256,
                tokenizer_sha256="" if tokenizer is None else tokenizer_sha256(tokenizer),
                context=context_length(lens),
                edits=lens.edits,
                files=after,
            )
        )
    return lens
