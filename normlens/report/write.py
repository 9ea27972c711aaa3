"""Writes the directory of a report, under a temporary name until it is complete."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from normlens import figures as drawing
from normlens.atomic import atomic_directory
from normlens.comparison import (
    Relation,
    caveats,
    compare_headlines,
    models_of,
    provenance_of,
    relations,
    side_by_side,
)
from normlens.errors import OutputError, UsageError
from normlens.figures import theme
from normlens.report.building import check_rows, headline_groups, model_view, section
from normlens.report.export import figure_json, write_table
from normlens.report.page import Javascript, render
from normlens.report.view import FigureView, Page, figure_file, table_file
from normlens.results import Result

SUMMARY_SCHEMA_VERSION = 1
LARGE_BYTES = 15_000_000
# Says when or how fast, not what: equal runs would write different pages.
_PER_RUN = ("created", "seconds", "elapsed", "started", "finished")


def write_report(
    results: Sequence[Result],
    out: Path,
    *,
    title: str,
    command: str,
    lineage: Sequence[Relation] | None = None,
    warnings: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    js: Javascript = "inline",
    replace: bool = False,
) -> Path:
    """Write ``report.html`` and everything it shows as files into directory ``out``.

    ``report.html``, ``summary.json``, ``provenance.json``, ``config.resolved.json``,
    ``tables/*.csv`` and ``*.parquet``, ``figures/*.json``. Two calls with equal arguments
    write equal bytes, but for ``created`` in ``provenance.json``.

    Args:
        results: of any analyses; several of one analysis are put side by side.
        out: the directory to create.
        title: heading of the page.
        command: the command that made it.
        lineage: related pairs of models; None takes them from provenance.
        warnings: shown before those of the results.
        config: resolved configuration, JSON-serialisable.
        js: see :func:`normlens.report.page.render`.
        replace: whether an existing report may be replaced.

    Returns:
        Path of ``report.html``.

    Raises:
        UsageError: there is no result.
        OutputError: ``out`` exists (and ``replace`` is false, or it is not a report), or it
            cannot be written.
    """
    if not results:
        raise UsageError("no results to report; run an analysis first")
    _refuse_to_replace_anything_else(out)
    joined = side_by_side(results)
    models, provenance = models_of(joined), provenance_of(joined)
    related = relations(models, provenance) if lineage is None else tuple(lineage)
    drawn = {result.analysis: _draw(result) for result in joined}
    looks = theme.identities(models, provenance)
    page = Page(
        title=title,
        command=command,
        models=tuple(model_view(looks[m], provenance.get(m, {})) for m in models),
        headlines=headline_groups(joined),
        warnings=tuple(dict.fromkeys([*warnings, *(w for r in joined for w in r.warnings)])),
        caveats=caveats(joined, related),
        relations=related,
        checks=check_rows(joined, models),
        sections=tuple(section(result, drawn[result.analysis]) for result in joined),
        config=_json(config or {}),
        provenance=_json({m: _repeatable(p) for m, p in provenance.items()}),
    )
    page, document = _render(page, js)
    with atomic_directory(out, replace=replace) as directory:
        _text(directory / "report.html", document)
        _text(directory / "summary.json", _json(_summary(page, joined)))
        _text(directory / "config.resolved.json", page.config)
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        by_analysis = {result.analysis: result.provenance for result in joined}
        _text(
            directory / "provenance.json",
            _json({"created": created, "command": command, "analyses": by_analysis}),
        )
        tables, figures = directory / "tables", directory / "figures"
        tables.mkdir()
        figures.mkdir()
        write_table(compare_headlines(joined), tables, "headlines")
        for result in joined:
            for name, table in result.tables.items():
                write_table(table, tables, table_file(result.analysis, name))
            for view in drawn[result.analysis]:
                _text(figures / f"{figure_file(view.name)}.json", view.json)
    return out / "report.html"


def _refuse_to_replace_anything_else(out: Path) -> None:
    """A mistyped ``--out`` with ``--force`` must not delete somebody's directory."""
    if out.is_dir() and any(out.iterdir()) and not (out / "summary.json").is_file():
        raise OutputError(f"output {out} holds something other than a report; choose another")


def _draw(result: Result) -> list[FigureView]:
    # Plotly's layout has no attributes that a type checker knows of.
    drawn: dict[str, Any] = dict(drawing.of(result))
    return [
        FigureView(
            identifier=f"figure-{name.replace(':', '-').replace('_', '-')}",
            name=name,
            height=int(figure.layout.height),
            json=figure_json(figure),
        )
        for name, figure in drawn.items()
    ]


def _render(page: Page, js: Javascript) -> tuple[Page, str]:
    document = render(page, js)
    size = len(document.encode("utf-8", errors="backslashreplace"))
    if size <= LARGE_BYTES:
        return page, document
    warning = f"This page is {size / 1e6:.0f} MB; browsers may be slow. Compare fewer models."
    page = dataclasses.replace(page, warnings=(*page.warnings, warning))
    return page, render(page, js)


def _summary(page: Page, results: Sequence[Result]) -> dict[str, Any]:
    """The report for programs: numbers, checks and warnings, without tables."""
    return {
        "schema_version": SUMMARY_SCHEMA_VERSION,
        "title": page.title,
        "models": [view.identity.model for view in page.models],
        "passed": all(result.passed for result in results),
        "headlines": compare_headlines(results).to_dict("records"),
        "checks": [
            {
                "analysis": row.analysis,
                "name": row.name,
                "model": model,
                "value": check.value,
                "tolerance": check.tolerance,
                "passed": check.passed,
            }
            for row in page.checks
            for model, check in row.by_model.items()
            if check
        ],
        "not_applicable": {result.analysis: dict(result.not_applicable) for result in results},
        "warnings": list(page.warnings),
        "caveats": [{"name": c.name, "text": c.text, "serious": c.serious} for c in page.caveats],
        "lineage": [
            {"model": r.model, "other": r.other, "cosine": r.cosine, "related": r.related}
            for r in page.relations
        ],
        "figures": [
            f"figures/{figure_file(f.name)}.json" for s in page.sections for f in s.figures
        ],
        "tables": [f"tables/{file}.csv" for s in page.sections for file in s.files],
    }


def _repeatable(provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in provenance.items() if key not in _PER_RUN}


def _json(value: Any) -> str:
    return json.dumps(_plain(value), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """JSON knows no NaN, tuple or path."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _text(path: Path, text: str) -> None:
    # Lone surrogates, which undecodable tokens may hold, have no UTF-8 form.
    path.write_bytes(text.encode("utf-8", errors="backslashreplace"))
