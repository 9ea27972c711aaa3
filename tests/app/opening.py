"""Opens pages of the explorer without a browser."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

MAIN = Path(__file__).parents[2] / "app" / "main.py"


@dataclass(frozen=True)
class Explorer:
    """A server's options, as environment variables."""

    store: Path

    def open(self, page: str = "", **query: str) -> AppTest:
        """The page at an address, drawn once; ``page`` is its last part."""
        test = AppTest.from_file(str(MAIN), default_timeout=240)
        # Pages are callables here; AppTest switches between files alone.
        test._page_hash = calc_hash(page)
        for key, value in query.items():
            test.query_params[key] = value
        return test.run()

    def switch(self, test: AppTest, page: str) -> AppTest:
        """Another page of the same session."""
        test._page_hash = calc_hash(page)
        return test.run()


def html(test: AppTest) -> str:
    """All HTML of a page, the style sheet left out."""
    bodies = [element.proto.body for element in test.get("html")]
    return "\n".join(body for body in bodies if not body.startswith("<style>"))


def charts(test: AppTest) -> list[dict]:
    """The specifications of a page's charts."""
    return [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]
