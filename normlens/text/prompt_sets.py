"""Contrast sets: pairs of prompts that differ in the word which decides the next token.

A set is a ``.jsonl`` file, one pair a line, with the fields of :class:`PromptPair` that are
text. The pair's clean prompt asks for ``answer``, its corrupted prompt for ``wrong``; both
are one token. Whether they are depends on the tokenizer, so it is checked when loading, in
context: ``ids(prompt + answer) = ids(prompt) + (answer_id,)``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from normlens.errors import BadText, UnknownName, UsageError
from normlens.resources import data_path
from normlens.text.encoding import BosPolicy, require_bos, token_ids

FIELDS = ("id", "template", "clean", "corrupted", "answer", "wrong")


@dataclass(frozen=True)
class PromptText:
    """One pair as stored.

    Attributes:
        id: unique within its set.
        template: the pattern the pair was made from; results are grouped by it.
        clean: prompt after which ``answer`` follows.
        corrupted: the same prompt asking for ``wrong``.
        answer: the right continuation of ``clean``, with its leading space.
        wrong: the wrong one, with its leading space.
    """

    id: str
    template: str
    clean: str
    corrupted: str
    answer: str
    wrong: str


@dataclass(frozen=True)
class PromptPair:
    """One pair under a tokenizer.

    Attributes:
        text: as stored.
        clean_ids: token ids of the clean prompt, BOS first where the policy says so.
        corrupted_ids: of the corrupted prompt, as many.
        answer_id: the single token of ``text.answer``.
        wrong_id: the single token of ``text.wrong``.
    """

    text: PromptText
    clean_ids: tuple[int, ...]
    corrupted_ids: tuple[int, ...]
    answer_id: int
    wrong_id: int


@dataclass(frozen=True)
class PromptSet:
    """The pairs of a contrast set that suit a tokenizer.

    Attributes:
        name: of the set.
        bos: whether every prompt starts with BOS.
        pairs: in the order of the file.
        reasons: why each other pair was left out, one line each.
    """

    name: str
    bos: BosPolicy
    pairs: tuple[PromptPair, ...]
    reasons: tuple[str, ...]

    @property
    def dropped(self) -> int:
        """Number of pairs that were left out."""
        return len(self.reasons)


def load_prompt_set(
    name_or_path: str, tokenizer: PreTrainedTokenizerBase, *, bos: BosPolicy = "prepend"
) -> PromptSet:
    """Read a bundled set (``ioi``, ``pronouns``) or a ``.jsonl`` file for a tokenizer.

    Pairs whose answers are not single tokens, or whose prompts differ in length, are left
    out and counted.

    Raises:
        UnknownName: no bundled set and no file of that name.
        BadText: the file is empty or malformed, or no pair suits the tokenizer.
        UsageError: ``prepend`` with a tokenizer that has no BOS.
    """
    if bos == "prepend" and tokenizer.bos_token_id is None:
        raise UsageError("the tokenizer has no BOS token to prepend; pass bos='none'")
    path = _path(name_or_path)
    pairs: list[PromptPair] = []
    reasons: list[str] = []
    for text in read_prompts(path):
        found = encode_pair(text, tokenizer, bos)
        if isinstance(found, PromptPair):
            pairs.append(found)
        else:
            reasons.append(f"{text.id}: {found}")
    if not pairs:
        raise BadText(
            f"no pair of {path.stem} suits this tokenizer ({reasons[0]}); use another prompt set"
        )
    return PromptSet(path.stem, bos, tuple(pairs), tuple(reasons))


def read_prompts(path: Path) -> tuple[PromptText, ...]:
    """The pairs of a ``.jsonl`` file.

    Raises:
        BadText: unreadable, empty, malformed, or two pairs share an id; names the line.
    """
    try:
        # Not splitlines(): it also splits at separators that JSON strings may hold.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadText(f"cannot read prompt set {path} as UTF-8: {error}") from error
    prompts = tuple(_parse(line, path, n) for n, line in enumerate(lines, 1) if line.strip())
    if not prompts:
        raise BadText(f"prompt set {path} is empty; give one pair a line")
    if len({prompt.id for prompt in prompts}) < len(prompts):
        raise BadText(f"prompt set {path} uses an id twice; give every pair an id of its own")
    return prompts


def prompt_set_names() -> list[str]:
    """Names of the bundled sets, sorted."""
    return sorted(path.stem for path in data_path("prompts").glob("*.jsonl"))


def _path(name_or_path: str) -> Path:
    path = Path(name_or_path)
    if path.suffix != ".jsonl":
        path = data_path("prompts", f"{name_or_path}.jsonl")
    if not path.is_file():
        known = ", ".join(prompt_set_names())
        raise UnknownName(f"no prompt set {name_or_path!r}; bundled: {known}; or a .jsonl file")
    return path


def _parse(line: str, path: Path, number: int) -> PromptText:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise BadText(f"{path} line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise BadText(f"{path} line {number} is not a JSON object; one pair a line")
    for field in FIELDS:
        if not isinstance(row.get(field), str) or not row[field]:
            raise BadText(f"{path} line {number}: field {field!r} is missing or not a text")
    return PromptText(**{field: row[field] for field in FIELDS})


def encode_pair(
    text: PromptText, tokenizer: PreTrainedTokenizerBase, bos: BosPolicy
) -> PromptPair | str:
    """The pair under a tokenizer, or in words why it does not suit it.

    Raises:
        UsageError: ``prepend`` with a tokenizer that has no BOS.
    """
    clean, corrupted = token_ids(tokenizer, text.clean), token_ids(tokenizer, text.corrupted)
    if len(clean) != len(corrupted):
        return f"its prompts have {len(clean)} and {len(corrupted)} tokens"
    if clean == corrupted:
        return "its prompts are the same"
    answers = []
    for answer in (text.answer, text.wrong):
        ids = token_ids(tokenizer, text.clean + answer)
        if len(ids) != len(clean) + 1 or ids[:-1] != clean:
            return f"{answer!r} is not one token after its prompt"
        answers.append(ids[-1])
    prefix = (require_bos(tokenizer),) if bos == "prepend" else ()
    return PromptPair(text, (*prefix, *clean), (*prefix, *corrupted), answers[0], answers[1])
