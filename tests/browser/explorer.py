"""A browser session of the explorer, watched for everything that must never happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Dialog,
    Error,
    Locator,
    Page,
    Request,
    Response,
    expect,
)

IDLE = '[data-testid="stApp"][data-test-script-state="notRunning"]'
MOST_MS = 120_000
# A link to a page makes Streamlit look for its server below that page's address first.
PROBES = ("/_stcore/health", "/_stcore/host-config")
LOCAL = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "about:")


@dataclass
class Explorer:
    """One session.

    Attributes:
        page: of the browser.
        url: of the server.
        faults: console errors, exceptions, dialogs and requests to other machines.
    """

    page: Page
    url: str
    faults: list[str] = field(default_factory=list)

    @classmethod
    @contextmanager
    def session(
        cls, browser: Browser, url: str, *, width: int = 1440, dark: bool = False
    ) -> Iterator[Explorer]:
        """A fresh session: no cookies, no state, a connection of its own."""
        scheme = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        explorer = cls(context.new_page(), url)
        explorer._watch()
        try:
            yield explorer
        finally:
            context.close()

    def _watch(self) -> None:
        self.page.set_default_timeout(MOST_MS)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", self._on_error)
        self.page.on("dialog", self._on_dialog)
        self.page.on("request", self._on_request)
        self.page.on("response", self._on_response)

    def _on_console(self, message: ConsoleMessage) -> None:
        # Failed loads are reported again, with their address, by _on_response.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(f"console: {message.text}")

    def _on_error(self, error: Error) -> None:
        self.faults.append(f"exception: {error}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(LOCAL):
            self.faults.append(f"request to another machine: {request.url}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and not response.url.endswith(PROBES):
            self.faults.append(f"{response.status}: {response.url}")

    def open(self, path: str = "") -> None:
        """Go to an address of the server."""
        self.page.goto(f"{self.url}/{path}")
        self.settle()

    def visit(self, title: str) -> None:
        """Follow a link of the navigation, which a phone hides behind a button."""
        link = self.page.get_by_test_id("stSidebarNav").get_by_role("link", name=title)
        opener = self.page.get_by_test_id("stExpandSidebarButton")
        if opener.is_visible():
            opener.click()
        link.click()
        expect(self.page.get_by_role("heading", level=1)).to_have_text(title)
        self.settle()

    def settle(self) -> None:
        """Wait until the page is drawn and nothing runs any more."""
        self.page.wait_for_timeout(150)
        self.page.wait_for_selector(IDLE)
        self.page.wait_for_function("!document.querySelector('[data-stale=true]')")

    def run(self, prompt: str, *, wait: bool = True) -> None:
        """Run another prompt than the last one, by the keyboard, on the page Text."""
        before = self.params().get("run", "")
        box = self.page.get_by_role("textbox", name="Prompt")
        box.fill(prompt)
        box.press("Control+Enter")
        if wait:
            self.wait_for_other("run", before)

    def wait_for_other(self, name: str, value: str) -> None:
        """Wait until a query parameter is there with another value, and the page is drawn."""
        code = """([name, value]) => {
            const now = new URLSearchParams(location.search).get(name);
            return now !== null && now !== value;
        }"""
        self.page.wait_for_function(code, arg=[name, value])
        self.settle()

    @property
    def chips(self) -> list[str]:
        """The tokens as they are shown."""
        return self.page.locator(".nl-chips .nl-text").all_inner_texts()

    @property
    def alerts(self) -> list[str]:
        """Errors in words."""
        return self.page.locator(".nl-error").all_inner_texts()

    def panel(self, name: str) -> Locator:
        """The panel of a figure."""
        return self.page.locator(f".st-key-panel-{name}")

    def box(self, label: str) -> str:
        """What a select box shows."""
        return self.page.get_by_role("combobox", name=label).first.input_value()

    def params(self) -> dict[str, str]:
        """The query parameters of the address."""
        script = "Object.fromEntries(new URLSearchParams(location.search))"
        return self.page.evaluate(script)

    def script(self, code: str) -> Any:
        """The value of a JavaScript expression."""
        return self.page.evaluate(code)

    def assert_sound(self) -> None:
        """Nothing that must never happen has happened so far."""
        assert self.faults == []
        assert self.page.get_by_test_id("stException").count() == 0
        assert not [alert for alert in self.alerts if "defect" in alert]
