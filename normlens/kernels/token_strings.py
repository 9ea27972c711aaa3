"""Tokens as a reader sees them, and strings as single tokens."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from normlens.errors import UsageError
from normlens.text.encoding import token_ids

REPLACEMENT = "\ufffd"
SENTENCEPIECE_SPACE = "\u2581"
MOST_PIECES = 8


def token_string(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """One token as text, its leading space kept.

    A token that is no text by itself (part of a character, say) is shown as the vocabulary
    writes it.
    """
    piece = str(tokenizer.convert_ids_to_tokens(token))
    text = str(tokenizer.decode([token], clean_up_tokenization_spaces=False))
    if not text or REPLACEMENT in text:
        return piece
    if piece.startswith(SENTENCEPIECE_SPACE) and not text.startswith(" "):
        return " " + text
    return text


def single_token(tokenizer: PreTrainedTokenizerBase, text: str, option: str) -> int:
    """The id of a text that is one token.

    Raises:
        UsageError: it is several tokens (the message names them), or none.
    """
    ids = token_ids(tokenizer, text)
    if len(ids) == 1:
        return ids[0]
    pieces = ", ".join(repr(token_string(tokenizer, token)) for token in ids[:MOST_PIECES])
    spaced = " " + text
    hint = "choose a single token"
    if not text.startswith(" ") and len(token_ids(tokenizer, spaced)) == 1:
        hint = f"{spaced!r}, with a leading space, is one"
    raise UsageError(f"{option} {text!r} is {len(ids)} tokens ({pieces or 'nothing'}); {hint}")
