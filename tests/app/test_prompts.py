"""A hostile prompt through the page, the model, the chips and the address."""

from __future__ import annotations

import pytest

from normlens.workbench.snapshots import Snapshots
from tests.app.opening import Explorer, charts, html

pytestmark = pytest.mark.components

HOSTILE = "<script>alert(1)</script> $x$ **b** </s> \N{GRINNING FACE} the the the"


def test_a_hostile_prompt_is_only_text(explorer: Explorer) -> None:
    test = explorer.open("text")
    test.text_area(key="prompt-text").set_value(HOSTILE)
    next(button for button in test.button if button.label == "Run").click().run()
    body = html(test)
    assert not test.exception
    assert "nl-error" not in body
    assert "<script" not in body
    assert body.count('<span class="nl-text">·the</span>') == 3
    assert "\\xf0" in body and "&lt;|bos|&gt;" in body
    assert len(charts(test)) == 2
    (kept,) = Snapshots(explorer.store).history()
    assert kept.prompt == HOSTILE
    address = dict(test.query_params)
    assert address["run"] in (kept.id, [kept.id])
    assert "script" not in str(address)


def test_an_empty_prompt_is_refused(explorer: Explorer) -> None:
    test = explorer.open("text")
    test.text_area(key="prompt-text").set_value("")
    next(button for button in test.button if button.label == "Run").click().run()
    assert "the prompt is empty; write at least one token" in html(test)
