"""A prompt as the model reads it: one chip per token, and the contrast sets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from normlens.resources import data_path
from normlens.workbench.choices import BosChoice, ModelChoice
from normlens.workbench.pool import ModelPool, Waiting, quietly
from normlens.workbench.sources import Sources

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from normlens.text.prompt_sets import PromptSet

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACES = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}


@dataclass(frozen=True)
class Chip:
    r"""One token of a prompt.

    Attributes:
        index: position, from 0; BOS included.
        id: in the vocabulary.
        text: what it decodes to, or its vocabulary entry where that is no text.
        shown: ``text`` with spaces ``·``, newlines ``⏎`` and, for parts of a character,
            bytes ``\xNN``; not escaped for HTML.
        special: whether it is one of the tokenizer's special tokens.
    """

    index: int
    id: int
    text: str
    shown: str
    special: bool


def prompt_chips(
    pool: ModelPool,
    sources: Sources,
    choice: ModelChoice,
    text: str,
    bos: BosChoice,
    waiting: Waiting = quietly,
) -> tuple[Chip, ...]:
    """The tokens that a run on ``text`` reads, the very same ids.

    Args:
        pool: of opened models.
        sources: what may be opened.
        choice: whose tokenizer.
        text: prompt.
        bos: BOS policy.
        waiting: called with the model's name when another session has it.

    Raises:
        BadText: the prompt is too short or longer than the model's context.
        UsageError: the tokenizer has no BOS to prepend.
        NormlensError: the model cannot be opened.
    """
    from normlens.kernels.token_strings import token_string
    from normlens.models.context import context_length
    from normlens.models.tokenizers import tokenizer_of
    from normlens.text.encoding import encode_prompt

    with pool.using(choice, sources, waiting) as lens:
        tokenizer = tokenizer_of(lens)
        sequences = encode_prompt(text, tokenizer, context=context_length(lens), bos=bos)
        special = frozenset(tokenizer.all_special_ids)
        return tuple(
            Chip(
                index,
                token,
                token_string(tokenizer, token),
                _shown(tokenizer, token, token_string(tokenizer, token)),
                token in special,
            )
            for index, token in enumerate(sequences.ids[0].tolist())
        )


def contrast_pairs(
    pool: ModelPool,
    sources: Sources,
    choice: ModelChoice,
    set_name: str,
    bos: BosChoice = "prepend",
    waiting: Waiting = quietly,
) -> PromptSet:
    """The pairs of a contrast set that suit the model's tokenizer.

    Raises:
        UnknownName: no such set.
        BadText: no pair suits the tokenizer.
        NormlensError: the model cannot be opened.
    """
    from normlens.models.tokenizers import tokenizer_of
    from normlens.text.prompt_sets import load_prompt_set

    with pool.using(choice, sources, waiting) as lens:
        return load_prompt_set(set_name, tokenizer_of(lens), bos=bos)


def prompt_set_names() -> list[str]:
    """Names of the bundled contrast sets, sorted."""
    return sorted(path.stem for path in data_path("prompts").glob("*.jsonl"))


def _shown(tokenizer: PreTrainedTokenizerBase, token: int, text: str) -> str:
    piece = str(tokenizer.convert_ids_to_tokens(token))
    if text == piece and token not in tokenizer.all_special_ids:
        raw = _bytes_of(piece)
        if raw is not None:
            return "".join(f"\\x{byte:02x}" for byte in raw)
    return "".join(SPACES.get(character, character) for character in text)


def _bytes_of(piece: str) -> bytes | None:
    """The bytes of a vocabulary entry that is no text; None where it is text."""
    match = BYTE_PIECE.fullmatch(piece)
    if match:
        return bytes([int(match[1], 16)])
    table = _byte_alphabet()
    if not all(character in table for character in piece):
        return None
    raw = bytes(table[character] for character in piece)
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw
    return None


@cache
def _byte_alphabet() -> dict[str, int]:
    """How byte-level BPE writes bytes: printable ones as they are, the rest from U+0100 on.

    Source: Radford et al. 2019 (GPT-2), ``bytes_to_unicode`` of its encoder.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + offset): byte for offset, byte in enumerate(rest)
    }
