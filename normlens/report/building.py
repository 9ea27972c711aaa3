"""From Results to what the page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from normlens import catalog
from normlens.comparison import headline_rows
from normlens.figures import theme
from normlens.report.numbers import cell, number, places, unit
from normlens.report.view import (
    MOST_ROWS,
    CheckRow,
    FigureView,
    HeadlineGroup,
    HeadlineView,
    ModelView,
    Section,
    TableView,
    table_file,
)
from normlens.results import Result

UNSHOWN_TABLES = ("replicates", "tokens")


def section(result: Result, figures: Sequence[FigureView]) -> Section:
    """The section of one analysis."""
    declared = catalog.get(result.analysis)
    shown = [name for name in result.tables if name not in UNSHOWN_TABLES]
    tables = [_table(result, name) for name in shown if len(result.tables[name])]
    files = [table_file(result.analysis, n) for n, frame in result.tables.items() if len(frame)]
    return Section(
        identifier=result.analysis,
        title=declared.title,
        question=declared.question,
        explanation=declared.explanation,
        citations=declared.citations,
        figures=tuple(figures),
        tables=tuple(tables),
        files=tuple(files),
        not_applicable=result.not_applicable,
    )


def headline_groups(results: Sequence[Result]) -> tuple[HeadlineGroup, ...]:
    """Headline numbers by analysis, in display order."""
    groups: dict[str, list[HeadlineView]] = {}
    for row in headline_rows(results):
        decimals = places(number.value for number in row.values.values() if number)
        groups.setdefault(row.analysis, []).append(HeadlineView(row, decimals))
    return tuple(
        HeadlineGroup(catalog.get(name).title, name, tuple(rows)) for name, rows in groups.items()
    )


def check_rows(results: Sequence[Result], models: Sequence[str]) -> tuple[CheckRow, ...]:
    """Every check, failed ones first."""
    found: list[CheckRow] = []
    for result in results:
        checks = {m: {c.name: c for c in result.checks.get(m, ())} for m in models}
        names = dict.fromkeys(name for by_name in checks.values() for name in by_name)
        for name in names:
            by_model = {model: checks[model].get(name) for model in models}
            doc = next(check.doc for check in by_model.values() if check)
            found.append(CheckRow(result.analysis, name, doc, by_model))
    return tuple(sorted(found, key=lambda row: row.passed))


def model_view(identity: theme.Identity, provenance: Mapping[str, Any]) -> ModelView:
    """One model, from its provenance."""
    sites = tuple(provenance.get("sites") or ())
    labels = {
        "kind": "scales",
        "source": "source",
        "licence": "licence",
        "ancestor": "fine-tuned from",
        "weights_sha256": "weights SHA-256",
        "quantised_from": "dequantised from",
        "edits": "edits",
        "dtype": "precision",
        "device": "device",
        "attention": "attention",
    }
    facts = [
        (label, _fact(key, provenance[key])) for key, label in labels.items() if provenance.get(key)
    ]
    verified = all(site["verified"] for site in sites)
    return ModelView(identity, tuple(facts), sites, _site_summary(sites), verified)


def _fact(key: str, value: Any) -> str:
    words = {
        "live": "live",
        "scale_free": "fixed (scale-free)",
        "elementwise": "none (elementwise norms)",
        "mixed": "of several kinds",
    }
    if key == "weights_sha256":
        return str(value)[:12]
    return words.get(str(value), cell(value)) if key == "kind" else cell(value)


def _site_summary(sites: Sequence[Mapping[str, Any]]) -> str:
    if not sites:
        return "no site is listed"
    kinds: dict[str, int] = {}
    for site in sites:
        kind = str(site["kind"]).replace("_", " ")
        kinds[kind] = kinds.get(kind, 0) + 1
    eps = sorted({float(site["eps"]) for site in sites if site.get("eps") is not None})
    parts = [f"{count} × {kind}" for kind, count in kinds.items()]
    if eps:
        parts.append("eps " + ", ".join(number(value) for value in eps))
    residuals = [float(site["residual"]) for site in sites if site.get("residual") is not None]
    if residuals:
        parts.append(f"largest residual {number(max(residuals))}")
    return "; ".join(parts)


def _table(result: Result, name: str) -> TableView:
    frame, schema = result.tables[name], result.schemas[name]
    declared = {column.name: column for column in schema.columns}
    columns = [str(column) for column in frame.columns if column != "status"]
    headings = [
        (c, unit(declared[c].unit), declared[c].doc) if c in declared else (c, "", "")
        for c in columns
    ]
    statuses = frame["status"].tolist()
    records = frame[columns].head(MOST_ROWS).to_numpy(object)
    rows = [
        tuple(_cell(value, status) for value in record)
        for record, status in zip(records, statuses, strict=False)
    ]
    return TableView(
        name=name,
        doc=schema.doc,
        file=table_file(result.analysis, name),
        headings=tuple(headings),
        rows=tuple(rows),
        numeric=tuple(pd.api.types.is_numeric_dtype(frame[c]) for c in columns),
        total=len(frame),
    )


def _cell(value: Any, status: str) -> str:
    missing = not isinstance(value, (str, list, tuple)) and pd.isna(value)
    return status.replace("_", " ") if missing and status != "ok" else cell(value)
