"""One server and one Chromium for all tests of the explorer in a browser.

Skip, with what ends it: where no Chromium is installed (``apt install chromium``); where
``CI`` is set the tests run and fail instead.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.explorer import MOST_MS, Explorer

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PAIR = ("books-ln", "books-lnfree")
UP_SECONDS = 90
FLAGS = ("--no-sandbox", "--disable-background-networking", "--disable-gpu")


@dataclass(frozen=True)
class Server:
    """A running explorer."""

    url: str
    store: Path


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if path is None:
        reason = "no Chromium is installed: apt install chromium"
        if "CI" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    expect.set_options(timeout=MOST_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """``normlens app`` on the bundled pair, with a store of its own."""
    place = tmp_path_factory.mktemp("explorer")
    store, roots = place / "store", place / "models"
    roots.mkdir()
    port = free_port()
    command = [
        sys.executable, "-m", "normlens", "app", *PAIR, "--port", str(port),
        "--results", str(store), "--model-root", str(roots),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    log = place / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=place, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until_up(process, f"http://127.0.0.1:{port}", log)
        yield Server(f"http://127.0.0.1:{port}", store)
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.fixture(scope="module")
def desk(chromium: Browser, server: Server) -> Iterator[Explorer]:
    """A session at a desktop that the tests of a module share."""
    with Explorer.session(chromium, server.url) as explorer:
        yield explorer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_up(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + UP_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            pass
        if process.poll() is not None:
            break
        time.sleep(0.2)
    pytest.fail(f"the explorer did not come up: {log.read_text()[-2000:]}")
