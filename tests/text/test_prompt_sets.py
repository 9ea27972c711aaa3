"""Contrast sets: what they hold, and what loading them checks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from normlens.errors import BadText, UnknownName, UsageError
from normlens.resources import data_path
from normlens.text.prompt_sets import load_prompt_set, prompt_set_names, read_prompts
from normlens.training.prompts import write_prompt_sets
from tests.tiny import tokenizer as bundled_tokenizer

GOOD = {
    "id": "a",
    "template": "said",
    "clean": "The king said that",
    "corrupted": "The queen said that",
    "answer": " he",
    "wrong": " she",
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return bundled_tokenizer()


def written(tmp_path: Path, *rows: object) -> str:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_the_bundled_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    write_prompt_sets(tmp_path)
    names = [path.name for path in sorted(tmp_path.iterdir())]
    assert names == [path.name for path in sorted(data_path("prompts").iterdir())]
    for name in names:
        assert (tmp_path / name).read_bytes() == data_path("prompts", name).read_bytes()


def test_ioi_pairs_ask_for_the_name_that_is_not_the_subject() -> None:
    prompts = read_prompts(data_path("prompts", "ioi.jsonl"))
    assert len(prompts) >= 64
    for prompt in prompts:
        clean, answer, wrong = prompt.clean.replace(",", " ").split(), prompt.answer, prompt.wrong
        assert answer[0] == wrong[0] == " " and answer != wrong
        assert clean.count(answer.strip()) == 1 and clean.count(wrong.strip()) == 2
        swapped = [
            answer.strip() if i == _last(clean, wrong.strip()) else w for i, w in enumerate(clean)
        ]
        assert swapped == prompt.corrupted.replace(",", " ").split()
        first = min(clean.index(answer.strip()), clean.index(wrong.strip()))
        order = "ABBA" if clean[first] == answer.strip() else "BABA"
        assert prompt.template.endswith(order)
    assert len({prompt.template for prompt in prompts}) >= 8


def _last(words: list[str], word: str) -> int:
    return max(index for index, found in enumerate(words) if found == word)


def test_pronouns_are_balanced_and_all_suit_the_bundled_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    found = load_prompt_set("pronouns", tokenizer)
    assert found.dropped == 0 and len(found.pairs) >= 64
    answers = Counter((pair.text.template, pair.text.answer) for pair in found.pairs)
    for template in {pair.text.template for pair in found.pairs}:
        counts = [count for (name, _), count in answers.items() if name == template]
        assert len(counts) == 2 and counts[0] == counts[1]
    by_prompt = {pair.text.clean: pair.text for pair in found.pairs}
    for text in by_prompt.values():
        mirror = by_prompt[text.corrupted]
        assert (mirror.corrupted, mirror.answer, mirror.wrong) == (
            text.clean,
            text.wrong,
            text.answer,
        )


def test_ids_decode_to_the_texts_and_start_with_bos(tokenizer: PreTrainedTokenizerBase) -> None:
    found = load_prompt_set("pronouns", tokenizer)
    without = load_prompt_set("pronouns", tokenizer, bos="none")
    for pair, bare in zip(found.pairs, without.pairs, strict=True):
        assert pair.clean_ids == (tokenizer.bos_token_id, *bare.clean_ids)
        assert tokenizer.decode(bare.clean_ids) == pair.text.clean
        assert tokenizer.decode(bare.corrupted_ids) == pair.text.corrupted
        assert tokenizer.decode([pair.answer_id]) == pair.text.answer
        assert tokenizer.decode([pair.wrong_id]) == pair.text.wrong
        assert len(pair.clean_ids) == len(pair.corrupted_ids)


def test_pairs_that_do_not_suit_the_tokenizer_are_counted_with_a_reason(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    rows = (
        GOOD,
        {**GOOD, "id": "long answer", "answer": " metamorphosis"},
        {**GOOD, "id": "lengths", "corrupted": "The old queen said that"},
        {**GOOD, "id": "same", "corrupted": GOOD["clean"]},
        # "he" without its space would be merged into another token after some prompts.
        {**GOOD, "id": "merged", "clean": "The t", "corrupted": "The s", "answer": "he"},
    )
    found = load_prompt_set(written(tmp_path, *rows), tokenizer)
    assert [pair.text.id for pair in found.pairs] == ["a"]
    assert found.dropped == 4
    assert [reason.split(":")[0] for reason in found.reasons] == [
        str(row["id"]) for row in rows[1:]
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "is empty"),
        (({**GOOD, "wrong": ""},), "line 1: field 'wrong'"),
        ((GOOD, {"id": "b"}), "line 2: field 'template'"),
        ((GOOD, GOOD), "uses an id twice"),
        (([1],), "line 1 is not a JSON object"),
        (({**GOOD, "answer": " metamorphosis"},), "no pair of mine suits this tokenizer"),
    ],
)
def test_unusable_sets(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, rows: tuple[object, ...], message: str
) -> None:
    with pytest.raises(BadText, match=message):
        load_prompt_set(written(tmp_path, *rows), tokenizer)


def test_an_unknown_set_names_the_known_ones(tokenizer: PreTrainedTokenizerBase) -> None:
    assert prompt_set_names() == ["ioi", "pronouns"]
    with pytest.raises(UnknownName, match="ioi, pronouns"):
        load_prompt_set("pronoun", tokenizer)


def test_bos_has_to_exist_to_be_prepended() -> None:
    without = bundled_tokenizer()
    without.bos_token = None
    with pytest.raises(UsageError, match="no BOS"):
        load_prompt_set("pronouns", without)
    assert load_prompt_set("pronouns", without, bos="none").dropped == 0
