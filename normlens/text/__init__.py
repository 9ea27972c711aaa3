"""Corpora and prompts -> token sequences with masks, documents and an explicit BOS policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normlens.text.documents import Document, Documents, read_documents
from normlens.text.encoding import DEFAULT_CONTEXT, BosPolicy, encode, encode_prompt, token_ids
from normlens.text.sequences import Batch, Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "DEFAULT_CONTEXT",
    "Batch",
    "BosPolicy",
    "Document",
    "Documents",
    "Sequences",
    "encode",
    "encode_prompt",
    "load_corpus",
    "read_documents",
    "token_ids",
]


def load_corpus(
    source: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    context: int = DEFAULT_CONTEXT,
    bos: BosPolicy = "prepend",
    sequences: int | None = None,
) -> Sequences:
    """Read and encode a corpus in one step.

    Args:
        source: see :func:`read_documents`.
        tokenizer: of the model.
        context: tokens per sequence, BOS included.
        bos: ``prepend`` or ``none``.
        sequences: keep that many, spread evenly over the corpus; None keeps all.

    Raises:
        BadText: unusable text.
        UsageError: no BOS to prepend, or a count below 1.
    """
    encoded = encode(read_documents(source), tokenizer, context=context, bos=bos)
    return encoded if sequences is None else encoded.spread(sequences)
