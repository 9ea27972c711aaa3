"""What people type, upload and ask for: shown as it is, or refused in words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.explorer import Explorer

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

HOSTILE = (
    "<script>alert(1)</script>",
    "costs $x$ and $$y$$ or **b** and _c_",
    "the end</s> <|bos|> <s>&lt;b&gt;",
    "🙂 naïve ﷺ 日本",
    "tick tick tick tick tick tick",
)


def visible(text: str) -> str:
    """A text as chips show it."""
    return text.replace(" ", "·")


@pytest.fixture(scope="module")
def text(desk: Explorer) -> Explorer:
    desk.open("text")
    return desk


@pytest.mark.parametrize("prompt", HOSTILE, ids=["script", "markup", "special", "emoji", "again"])
def test_a_prompt_is_shown_as_it_is(text: Explorer, prompt: str) -> None:
    text.run(prompt)
    shown = "".join(text.chips[1:])
    if prompt.isascii():
        assert shown == visible(prompt)
    else:
        assert "\\x" in shown or visible(prompt) in shown
    assert text.alerts == []
    assert text.page.locator(".js-plotly-plot").count() >= 1
    assert prompt not in text.page.url
    text.assert_sound()


def test_repeated_tokens_keep_a_column_each(text: Explorer) -> None:
    text.run("sea sea sea sea")
    labels = text.page.locator(".js-plotly-plot .xtick text, .js-plotly-plot .ytick text")
    shown = " ".join(labels.all_text_contents())
    assert len(text.chips) >= 5
    assert all(f"{index}:" in shown for index in range(1, len(text.chips)))


def test_a_prompt_that_is_too_long_is_refused_in_words(text: Explorer) -> None:
    text.run("word " * 3000)
    alerts = " ".join(text.alerts)
    assert re.search(r"\b128\b", alerts), alerts
    text.assert_sound()
    text.run("A short one again")
    assert text.alerts == []
    assert "".join(text.chips[1:]) == "A·short·one·again"


def test_a_reload_restores_the_prompt_that_the_address_does_not_hold(text: Explorer) -> None:
    address = text.params()
    text.page.reload()
    text.settle()
    assert text.params() == address
    box = text.page.get_by_role("textbox", name="Prompt")
    expect(box).to_have_value("A short one again")
    assert "short" not in text.page.url


def test_a_model_that_is_not_there(desk: Explorer) -> None:
    desk.open("models?a=no-such-model&b=books-lnfree")
    assert any("no-such-model" in alert for alert in desk.alerts)
    desk.open("?a=../../etc&b=%3Cb%3Ex%3C/b%3E")
    assert desk.page.get_by_test_id("stMain").inner_text().strip()
    desk.assert_sound()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        pytest.param("noise.txt", b"\xff\xfe\x00\x81", "UTF-8", id="bytes"),
        pytest.param("table.csv", b"title\nx\n", "text", id="column"),
        pytest.param("lines.jsonl", b"{not json}\n", "line 1|JSON", id="json"),
        pytest.param("empty.txt", b"", "empty|no text", id="empty"),
    ],
)
def test_a_wrong_upload_says_why(
    desk: Explorer, tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    upload(desk, tmp_path / name, content)
    alerts = " ".join(desk.alerts)
    assert name in alerts and re.search(reason, alerts), alerts
    assert "text" not in desk.params()
    desk.assert_sound()


def test_a_good_upload_is_taken(desk: Explorer, tmp_path: Path) -> None:
    upload(desk, tmp_path / "my page.txt", b"It was a dark night. " * 400)
    assert desk.params()["text"].endswith("my_page.txt")
    assert desk.alerts == []
    desk.assert_sound()


def upload(desk: Explorer, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    desk.open("text")
    desk.page.get_by_test_id("stMain").get_by_text("Corpus", exact=True).first.click()
    chooser = desk.page.get_by_test_id("stFileUploaderDropzoneInput")
    chooser.set_input_files(path)
    refused = "document.querySelector('.nl-error')"
    taken = "new URLSearchParams(location.search).has('text')"
    desk.page.wait_for_function(f"{refused} || {taken}")
    desk.settle()
