"""Load, click a map, follow pages and links: one selection, kept and restored."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.conftest import Server
from tests.browser.explorer import Explorer

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

PAGES = (
    "Overview", "Models", "Text", "Norms", "Attention", "Outliers", "Attribution", "Depth",
    "Output", "More analyses", "Removal lab", "Reports", "Help",
)  # fmt: skip
MAP = "attention-entropy-entropy-map"


def click_map(plot: Locator, *, x: float, y: float) -> None:
    """Click into the first panel of a figure, at a share of its width and height."""
    plot.scroll_into_view_if_needed()
    area = plot.locator(".nsewdrag").first.bounding_box()
    assert area is not None
    plot.page.mouse.click(area["x"] + x * area["width"], area["y"] + y * area["height"])


def test_it_opens_on_the_bundled_pair_with_real_results(desk: Explorer) -> None:
    desk.open()
    expect(desk.page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(desk.page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    text = desk.page.locator(".nl-headlines").first.inner_text()
    assert "books-ln" in text and "books-lnfree" in text and "n = " in text
    assert desk.params() == {"a": "books-ln", "b": "books-lnfree"}
    desk.assert_sound()


def test_a_click_on_a_map_is_a_link(desk: Explorer) -> None:
    desk.visit("Attention")
    click_map(desk.panel(MAP), x=0.75, y=0.25)
    desk.wait_for_other("layer", "")
    first = desk.params()
    assert {"layer", "head"} <= set(first)
    assert desk.box("Layer") == first["layer"] and desk.box("Head") == first["head"]

    click_map(desk.panel(MAP), x=0.15, y=0.8)
    desk.wait_for_other("layer", first["layer"])
    second = desk.params()
    assert second["head"] != first["head"]

    desk.page.reload()
    desk.settle()
    assert desk.params() == second
    assert desk.box("Layer") == second["layer"] and desk.box("Head") == second["head"]
    desk.assert_sound()


def test_pages_keep_the_selection(desk: Explorer) -> None:
    before = desk.params()
    desk.visit("Outliers")
    assert desk.box("Layer") == before["layer"]
    desk.visit("Attention")
    assert desk.params() == before
    assert desk.box("Head") == before["head"]
    desk.page.get_by_role("button", name="Clear", exact=False).first.click()
    desk.settle()
    assert not {"layer", "head"} & set(desk.params())
    desk.assert_sound()


def test_another_session_gets_what_the_link_says(chromium: Browser, server: Server) -> None:
    with Explorer.session(chromium, server.url) as other:
        other.open("attention?a=books-lnfree&b=books-ln&layer=2&head=1")
        assert (other.box("Layer"), other.box("Head")) == ("2", "1")
        slots = other.page.get_by_test_id("stSidebar").locator(".nl-legend li").all_inner_texts()
        assert [name.split("\n")[0].strip("AB ") for name in slots] == ["books-lnfree", "books-ln"]
        other.assert_sound()


def test_every_page_fits_a_phone(chromium: Browser, server: Server) -> None:
    with Explorer.session(chromium, server.url, width=390) as phone:
        phone.open()
        for title in PAGES:
            phone.visit(title)
            wide = phone.script(
                "[document.documentElement, document.querySelector('[data-testid=stMain]')]"
                ".map(part => part.scrollWidth - part.clientWidth)"
            )
            assert max(wide) <= 0, f"{title} is {max(wide)} px wider than a phone"
            phone.assert_sound()


def test_the_dark_theme_reaches_charts_and_text(chromium: Browser, server: Server) -> None:
    with Explorer.session(chromium, server.url, dark=True) as night:
        night.open("attention")
        assert brightness(night, ".stApp", "backgroundColor") < 60
        assert brightness(night, ".nl-title h1", "color") > 150
        assert brightness(night, f".st-key-panel-{MAP} .gtitle", "fill") > 120
        night.assert_sound()


BRIGHTNESS = """(element, property) => {
    const parts = getComputedStyle(element)[property].match(/[\\d.]+/g).slice(0, 3).map(Number);
    return parts.reduce((sum, part) => sum + part, 0) / 3;
}"""


def brightness(explorer: Explorer, selector: str, name: str) -> float:
    return explorer.page.locator(selector).first.evaluate(BRIGHTNESS, name)
