"""Documents -> token sequences. Ids are made once here and never again."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from normlens.errors import BadText, UsageError
from normlens.text.documents import Documents, read_documents
from normlens.text.sequences import BosPolicy, Sequences

SHORTEST_TAIL = 16
DEFAULT_CONTEXT = 512


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


def encode(
    documents: Documents,
    tokenizer: PreTrainedTokenizerBase,
    *,
    context: int,
    bos: BosPolicy = "prepend",
    tails: bool = True,
) -> Sequences:
    """Cut every document into windows of ``context`` tokens.

    With ``prepend`` every window starts with BOS and holds ``context - 1`` text tokens.
    A window never crosses a document's end; a last partial window is kept, right-padded,
    when ``tails`` and it has at least 16 tokens or is the document's only one.

    Raises:
        UsageError: ``prepend`` with a tokenizer that has no BOS, or a context below 2.
        BadText: no document yields two tokens.
    """
    if context < 2:
        raise UsageError(f"context is {context}; it must be at least 2 tokens")
    prefix = _prefix(tokenizer, bos)
    body = context - len(prefix)
    rows: list[list[int]] = []
    owners: list[int] = []
    for index, document in enumerate(documents.items):
        ids = token_ids(tokenizer, document.text)
        for start in range(0, len(ids), body):
            window = ids[start : start + body]
            partial = len(window) < body
            if partial and not (tails and (len(window) >= SHORTEST_TAIL or start == 0)):
                continue
            if len(prefix) + len(window) >= 2:
                rows.append(prefix + window)
                owners.append(index)
    if not rows:
        raise BadText(f"{documents.name} has no sequence of two or more tokens; give a longer text")
    return _pack(rows, owners, documents, tokenizer, bos, context)


def encode_prompt(
    prompt: str, tokenizer: PreTrainedTokenizerBase, *, context: int, bos: BosPolicy = "prepend"
) -> Sequences:
    """One prompt as one sequence, never cut.

    Raises:
        BadText: empty, or longer than ``context`` tokens.
        UsageError: ``prepend`` with a tokenizer that has no BOS.
    """
    ids = _prefix(tokenizer, bos) + token_ids(tokenizer, prompt)
    if len(ids) < 2:
        raise BadText("the prompt has fewer than two tokens; give a longer one")
    if len(ids) > context:
        raise BadText(
            f"the prompt has {len(ids)} tokens, the model's context is {context}; shorten it"
        )
    documents = Documents("prompt", ())
    return _pack([ids], [0], documents, tokenizer, bos, len(ids), document_ids=("prompt",))


def token_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of a text without special tokens."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def require_bos(tokenizer: PreTrainedTokenizerBase) -> int:
    """Id of the BOS token.

    Raises:
        UsageError: the tokenizer has none.
    """
    bos = tokenizer.bos_token_id
    if not isinstance(bos, int):
        raise UsageError("the tokenizer has no BOS token to prepend; pass --bos none")
    return bos


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of vocabulary, merges and special tokens."""
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        content = tokenizer.backend_tokenizer.to_str()
    else:
        content = repr(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(content.encode()).hexdigest()


def _prefix(tokenizer: PreTrainedTokenizerBase, bos: BosPolicy) -> list[int]:
    if bos == "none":
        return []
    return [require_bos(tokenizer)]


def _pack(
    rows: list[list[int]],
    owners: list[int],
    documents: Documents,
    tokenizer: PreTrainedTokenizerBase,
    bos: BosPolicy,
    width: int,
    document_ids: tuple[str, ...] | None = None,
) -> Sequences:
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id)
    pad = next((i for i in candidates if isinstance(i, int)), 0)
    ids = np.full((len(rows), width), pad, dtype=np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return Sequences(
        ids=torch.from_numpy(ids),
        lengths=torch.tensor([len(row) for row in rows]),
        document=torch.tensor(owners),
        document_ids=document_ids or tuple(document.id for document in documents.items),
        name=documents.name,
        bos=bos,
        pad_id=pad,
        tokenizer_sha256=tokenizer_sha256(tokenizer),
    )
