"""Two sessions at once, on the same models: each gets what it would get alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Browser, expect

from normlens.results import Result
from normlens.workbench.choices import ModelChoice
from normlens.workbench.stored import StoredResults
from tests.browser.conftest import PAIR, Server
from tests.browser.explorer import Explorer

# Not marked `components`, although it runs a component view: that would make a group of its own.
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

ANALYSIS = "prompt-attribution"
PROMPTS = ("The captain looked out over the sea and", "My dear sister, I have never been so")
CHOICES = tuple(ModelChoice(name) for name in PAIR)


def test_two_sessions_at_once_give_the_sequential_results(
    chromium: Browser, server: Server, tmp_path: Path
) -> None:
    with (
        Explorer.session(chromium, server.url) as first,
        Explorer.session(chromium, server.url) as second,
    ):
        for explorer in (first, second):
            explorer.open("text")
        for explorer, prompt in zip((first, second), PROMPTS, strict=True):
            explorer.run(prompt, wait=False)
        for explorer in (first, second):
            expect(explorer.page.locator(".nl-headlines").first).to_be_visible()
            explorer.settle()
        shown = [e.page.locator(".nl-headlines").first.inner_text() for e in (first, second)]
        assert shown[0] != shown[1]
        for explorer, prompt in zip((first, second), PROMPTS, strict=True):
            assert "".join(explorer.chips[1:]) == prompt.replace(" ", "·")
            explorer.assert_sound()

    for prompt in PROMPTS:
        together = stored(server.store, prompt)
        alone = sequential(tmp_path / "alone", prompt)
        assert set(together) == set(alone)
        for name, table in together.items():
            assert len(table)
            pd.testing.assert_frame_equal(table, alone[name], rtol=1e-4, atol=1e-5)


def stored(store: Path, prompt: str) -> Mapping[str, pd.DataFrame]:
    found = StoredResults([store]).find(ANALYSIS, CHOICES, None, parameters={"prompt": prompt})
    assert found.result is not None and not found.missing
    return tables(found.result)


def sequential(store: Path, prompt: str) -> Mapping[str, pd.DataFrame]:
    from normlens.workbench.pool import ModelPool
    from normlens.workbench.prompts import run_prompt
    from normlens.workbench.sources import Sources

    def waiting(name: str) -> None:
        raise AssertionError(f"{name} is in use")

    (result,) = run_prompt(
        ModelPool(),
        Sources(),
        CHOICES,
        [ANALYSIS],
        {ANALYSIS: {"prompt": prompt}},
        bos="prepend",
        store=store,
        waiting=waiting,
    )
    return tables(result)


def tables(result: Result) -> Mapping[str, pd.DataFrame]:
    assert result.passed
    return {name: table for name, table in result.tables.items() if len(table)}
