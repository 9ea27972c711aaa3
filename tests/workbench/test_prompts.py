"""Prompts in process: sessions that share a model get what each would get alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from normlens.errors import BadText, UsageError
from normlens.hooks import hook_count
from normlens.results import Result
from normlens.workbench.choices import ModelChoice
from normlens.workbench.pool import ModelPool
from normlens.workbench.prompts import run_prompt
from normlens.workbench.sources import Sources
from normlens.workbench.stored import StoredResults
from normlens.workbench.tokens import prompt_chips
from tests.workbench.small_store import write_models

pytestmark = pytest.mark.components

PAIR = (ModelChoice("ln"), ModelChoice("lnfree"))
NAME = "prompt-attribution"
PROMPTS = [f"Alice took the {thing} and opened the door" for thing in ("key", "cat", "ship", "hat")]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    root = tmp_path_factory.mktemp("models")
    write_models(root)
    return Sources(root)


def ask(pool: ModelPool, sources: Sources, prompt: str, store: Path, **more: object) -> Result:
    (result,) = run_prompt(
        pool,
        sources,
        PAIR,
        [NAME],
        {NAME: {"prompt": prompt, **more}},
        bos="prepend",
        store=store,
        waiting=lambda _name: None,
    )
    return result


def numbers(result: Result) -> str:
    tables = {name: table.to_json() for name, table in sorted(result.tables.items())}
    return json.dumps(tables) + repr(result.headline)


def test_sessions_at_once_get_the_sequential_results(sources: Sources, tmp_path: Path) -> None:
    alone = {p: numbers(ask(ModelPool(), sources, p, tmp_path / "alone")) for p in PROMPTS}
    assert len(set(alone.values())) == len(PROMPTS), "a mix-up would show"
    pool, together = ModelPool(), {}
    start = threading.Barrier(len(PROMPTS))

    def session(prompt: str) -> None:
        start.wait(60)
        together[prompt] = numbers(ask(pool, sources, prompt, tmp_path / "together"))

    threads = [threading.Thread(target=session, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert together == alone
    for choice in PAIR:
        assert hook_count(pool.open(choice, sources).model) == 0


def test_a_result_is_stored_and_found_without_running(sources: Sources, tmp_path: Path) -> None:
    made = ask(ModelPool(store=tmp_path), sources, PROMPTS[0], tmp_path)
    stored = StoredResults([tmp_path], sources)
    found = stored.find(NAME, PAIR, None, parameters={"prompt": PROMPTS[0]})
    assert found.result is not None and numbers(found.result) == numbers(made)
    assert found.result.provenance == made.provenance
    assert made.models == ("ln", "lnfree")
    assert stored.find(NAME, PAIR, None, parameters={"prompt": PROMPTS[1]}).missing == PAIR
    other = stored.find(NAME, PAIR, None, parameters={"prompt": PROMPTS[0]}, bos="none")
    assert other.missing == PAIR


def test_chips_are_the_tokens_of_the_run(sources: Sources, tmp_path: Path) -> None:
    pool = ModelPool()
    text = " two  spaces\n\tand <|bos|> 🦉 <script>$x$ the the the"
    chips = prompt_chips(pool, sources, PAIR[0], text, "prepend")
    table = ask(pool, sources, text, tmp_path).tables["positions"]
    of_model = table[table["model"] == "ln"]
    assert [chip.text for chip in chips] == of_model["token"].tolist()
    assert [chip.index for chip in chips] == of_model["position"].tolist()
    assert chips[0].special and chips[0].shown == "<|bos|>"
    assert sum(chip.special for chip in chips) == 2, "the one that was typed is one too"
    shown = "".join(chip.shown for chip in chips[1:])
    assert "·two" in shown and "⏎" in shown and "⇥" in shown and "<script>" in shown
    assert r"\xf0\x9f" in shown.replace("·", ""), "an owl is four bytes for this tokenizer"
    assert not any(c in shown for c in " \n\t")
    bare = prompt_chips(pool, sources, PAIR[0], text, "none")
    assert [chip.id for chip in bare] == [chip.id for chip in chips[1:]]


def test_bad_requests_are_one_line(sources: Sources, tmp_path: Path) -> None:
    pool = ModelPool()
    with pytest.raises(BadText, match="context is 64; shorten"):
        ask(pool, sources, "the ship " * 200, tmp_path)
    with pytest.raises(UsageError, match="no parameter colour"):
        ask(pool, sources, PROMPTS[0], tmp_path, colour="red")
    with pytest.raises(UsageError, match="prompt-attribution, parameter prompt"):
        ask(pool, sources, "", tmp_path)
    with pytest.raises(UsageError, match="reads a corpus"):
        run_prompt(
            pool, sources, PAIR, ["scale"], {}, bos="none", store=tmp_path, waiting=lambda _: None
        )  # fmt: skip
    assert not any(pool.busy(choice) for choice in PAIR)
