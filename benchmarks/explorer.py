"""How long a reader waits in the explorer, on the bundled pair, in a real browser.

* first figure: the server is up and has drawn nothing yet; until the first chart is visible
* page, selection: with stored results, until the new page's chart is visible, and until the
  address has the new selection and the page is at rest
* prompt: a prompt never seen before, models open, until its result is visible and the page is
  at rest

Each is the median of 5, every first figure with a server of its own. Needs Chromium.

    python benchmarks/explorer.py
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console
from rich.table import Table

REPEATS = 5
PAIR = ("books-ln", "books-lnfree")
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-background-networking", "--disable-gpu")
IDLE = '[data-testid="stApp"][data-test-script-state="notRunning"]'
CHART = ".js-plotly-plot .main-svg"
PAGES = ("Norms", "Attention", "Outliers", "Depth", "Output")
PROMPTS = tuple(
    f"She had {word} letters to write before" for word in ("six", "ten", "no", "two", "few")
)
TARGETS = {"first figure": 8.0, "page": 0.7, "selection": 0.7, "prompt": 2.0}


def main() -> None:
    path = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if path is None:
        raise SystemExit("no Chromium is installed: apt install chromium")
    times: dict[str, list[float]] = {}
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as place:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        for repeat in range(REPEATS):
            with explorer(Path(place) / f"store-{repeat}") as url:
                page = session(browser)
                times.setdefault("first figure", []).append(first_figure(page, url))
                if repeat == REPEATS - 1:
                    times |= warm(page)
                page.context.close()
        browser.close()
    report(times)


def report(times: dict[str, list[float]]) -> None:
    table = Table(title=f"{machine()}; median of {REPEATS}")
    for column in ("wait", "seconds", "all", "target"):
        table.add_column(column, justify="left" if column == "wait" else "right")
    for name, values in times.items():
        target = TARGETS.get(name)
        table.add_row(
            name,
            f"{statistics.median(values):.2f}",
            " ".join(f"{value:.2f}" for value in values),
            "" if target is None else f"{target:g}",
        )
    Console(width=110).print(table)


def first_figure(page: Page, url: str) -> float:
    start = time.perf_counter()
    page.goto(url)
    page.wait_for_selector(CHART)
    waited = time.perf_counter() - start
    settle(page)
    return waited


def warm(page: Page) -> dict[str, list[float]]:
    """Everything that a session does after its first page."""
    first = [timed(lambda title=title: visit(page, title)) for title in PAGES]
    again = [timed(lambda title=title: visit(page, title)) for title in PAGES]
    visit(page, "Attention")
    settle(page)
    select = [timed(lambda layer=layer: choose_layer(page, layer)) for layer in range(REPEATS)]
    visit(page, "Text", chart=False)
    settle(page)
    opening = [timed(lambda: run(page, "The first prompt opens both models and"))]
    prompts = [timed(lambda prompt=prompt: run(page, prompt)) for prompt in PROMPTS]
    return {
        "page, seen for the first time": first,
        "page": again,
        "selection": select,
        "prompt that opens the models": opening,
        "prompt": prompts,
    }


def visit(page: Page, title: str, *, chart: bool = True) -> None:
    page.get_by_test_id("stSidebarNav").get_by_role("link", name=title).click()
    page.wait_for_function("title => document.querySelector('h1')?.innerText === title", arg=title)
    if chart:
        page.wait_for_selector(f"{CHART} >> visible=true")


def choose_layer(page: Page, layer: int) -> None:
    box = page.get_by_role("combobox", name="Layer").first
    box.fill(str(layer))
    box.press("Enter")
    page.wait_for_function(
        "layer => new URLSearchParams(location.search).get('layer') === layer", arg=str(layer)
    )
    settle(page)


def run(page: Page, prompt: str) -> None:
    before = page.url
    box = page.get_by_role("textbox", name="Prompt")
    box.fill(prompt)
    box.press("Control+Enter")
    page.wait_for_function("before => location.href !== before", arg=before)
    settle(page)
    page.wait_for_selector(CHART)


def settle(page: Page) -> None:
    page.wait_for_selector(IDLE)
    page.wait_for_function("!document.querySelector('[data-stale=true]')")


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def session(browser: Browser) -> Page:
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.set_default_timeout(120_000)
    return page


@contextmanager
def explorer(store: Path) -> Iterator[str]:
    """A server that is up and has drawn nothing yet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "normlens", "app", *PAIR, "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--results", str(store)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        while not up(url):
            if process.poll() is not None:
                raise SystemExit("the explorer did not come up")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=20)


def up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def machine() -> str:
    processor = platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
