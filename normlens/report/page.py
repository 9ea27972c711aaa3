"""The page of a report: one self-contained HTML document."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Literal

import plotly.io
import plotly.offline
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from normlens.figures import theme
from normlens.report import numbers
from normlens.report.view import MOST_ROWS, Page

TEMPLATES = Path(__file__).parent / "templates"
Javascript = Literal["inline", "cdn"]


def render(page: Page, js: Javascript) -> str:
    """The document.

    Args:
        page: what to show.
        js: ``inline`` carries plotly.js inside; ``cdn`` loads the same version, pinned by its
            hash, from plotly's own server when the page is opened.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=numbers.number,
        fixed=numbers.fixed,
        unit=numbers.unit,
        prose=numbers.prose,
        citation_url=numbers.citation_url,
    )
    return environment.get_template("report.html.j2").render(
        page=page,
        interval=numbers.interval,
        most_rows=MOST_ROWS,
        style=_asset("report.css"),
        script=_asset("report.js"),
        plotly=_plotly(js),
        script_sources="'unsafe-inline'" + (" https://cdn.plot.ly" if js == "cdn" else ""),
        templates=_templates(),
    )


def _asset(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def _plotly(js: Javascript) -> Markup:
    source = plotly.offline.get_plotlyjs()
    if js == "inline":
        return Markup("<script>" + source + "</script>")
    digest = base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode("ascii")
    version = plotly.offline.get_plotlyjs_version()
    return Markup(
        '<script src="https://cdn.plot.ly/plotly-{}.min.js" integrity="sha256-{}" '
        'crossorigin="anonymous"></script>'
    ).format(version, digest)


def _templates() -> Markup:
    looks: dict[str, object] = {
        name: theme.template(dark=name == "dark").to_plotly_json() for name in ("light", "dark")
    }
    looks["inks"] = theme.DARK
    return Markup(json.dumps(looks, sort_keys=True).replace("<", "\\u003c"))
