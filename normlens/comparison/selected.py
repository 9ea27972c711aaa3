"""Every number of the part of a model that a reader has selected, models side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from normlens.comparison.headlines import incomparable
from normlens.comparison.lineage import relations
from normlens.comparison.selection import Selection
from normlens.results import Result, TableSchema

# Rows of single tokens and bootstrap replicates are no numbers about a part of the model.
_OTHER_TABLES = ("tokens", "replicates")


def at_selection(result: Result, selection: Selection) -> pd.DataFrame:
    """Every number about the selected part, models side by side.

    A table counts when it has a column of a chosen field; its rows are those that agree in all
    chosen fields it has.

    Columns: ``table``, ``where`` (what tells the table's rows apart), ``quantity``, ``unit``,
    ``doc``; for every model ``M`` ``M value`` and ``M n``; for every model but the first ``M
    delta``, the difference from the first, where the same index means the same part in both
    (they are related), both read the same tokens and the unit means the same in both; ``note``:
    in words, what is missing.
    """
    blocks = [
        _of_table(result, name, schema, selection)
        for name, schema in result.schemas.items()
        if name not in _OTHER_TABLES and {c.name for c in schema.columns} & set(selection.chosen)
    ]
    found = [block for block in blocks if len(block)]
    columns = ["table", "where", "quantity", "unit", "doc"]
    columns += [f"{model} {what}" for model in result.models for what in ("value", "n")]
    columns += [f"{model} delta" for model in result.models[1:]] + ["note"]
    if not found:
        return pd.DataFrame(columns=columns)
    frame = pd.concat(found, ignore_index=True)[columns]
    return frame.astype({f"{model} n": "Int64" for model in result.models})


def _of_table(result: Result, name: str, schema: TableSchema, selection: Selection) -> pd.DataFrame:
    frame = result.tables[name]
    for field, value in selection.chosen.items():
        if field in frame:
            frame = frame[(frame[field] == value).fillna(False).astype(bool)]
    keys = _keys(frame, schema)
    if not len(frame) or keys is None:
        return pd.DataFrame()
    by_model = {model: _indexed(frame[frame["model"] == model], keys) for model in result.models}
    places = dict.fromkeys(place for part in by_model.values() for place in part.index)
    quantities = [
        column
        for column in schema.columns
        if column.dtype == "float64" and not column.name.endswith(("_low", "_high"))
    ]
    unrelated = {m: _why_not_subtracted(result, m) for m in result.models[1:]}
    records: list[dict[str, Any]] = []
    for place in places:
        for column in quantities:
            why = {m: reason or _gauge(result, column.unit) for m, reason in unrelated.items()}
            records.append(
                _record(result, by_model, place, keys, why)
                | {"table": name, "quantity": column.name, "unit": column.unit, "doc": column.doc}
                | _values(result, by_model, place, column.name, why)
            )
    return pd.DataFrame.from_records(records)


def _keys(frame: pd.DataFrame, schema: TableSchema) -> list[str] | None:
    """The fewest leading columns that tell a model's rows apart; None where none do."""
    named = [
        column.name
        for column in schema.columns
        if column.dtype not in ("float64", "bool") and column.name not in ("model", "status", "n")
    ]
    if frame.duplicated(["model", *named]).any():
        return None
    for name in reversed(list(named)):
        fewer = [other for other in named if other != name]
        if not frame.duplicated(["model", *fewer]).any():
            named = fewer
    return named


def _indexed(part: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    places = [tuple(map(str, row)) for row in part[list(keys)].to_numpy(object)]
    return part.set_axis(pd.Index(places, tupleize_cols=False), axis=0)


def _record(
    result: Result,
    by_model: Mapping[str, pd.DataFrame],
    place: tuple[str, ...],
    keys: Sequence[str],
    comparable: Mapping[str, str],
) -> dict[str, Any]:
    where = ", ".join(f"{key} {value}" for key, value in zip(keys, place, strict=True))
    notes = []
    for model in result.models:
        if model in result.not_applicable:
            notes.append(f"{model}: not applicable, {result.not_applicable[model]}")
        elif place not in by_model[model].index:
            notes.append(f"{model}: has no such row")
        elif (status := str(by_model[model].at[place, "status"])) != "ok":
            notes.append(f"{model}: {status.replace('_', ' ')}")
        elif comparable.get(model):
            notes.append(f"no difference for {model}: {comparable[model]}")
    return {"where": where, "note": "; ".join(notes)}


def _values(
    result: Result,
    by_model: Mapping[str, pd.DataFrame],
    place: tuple[str, ...],
    quantity: str,
    comparable: Mapping[str, str],
) -> dict[str, Any]:
    values = {model: _number(part, place, quantity) for model, part in by_model.items()}
    found: dict[str, Any] = {f"{model} value": value for model, value in values.items()}
    for model, part in by_model.items():
        found[f"{model} n"] = _number(part, place, "n")
    reference = values[result.models[0]]
    for model, reason in comparable.items():
        found[f"{model} delta"] = math.nan if reason else values[model] - reference
    return found


def _gauge(result: Result, unit: str) -> str:
    """Why a size is not subtracted: a live norm divides out how large the residual is."""
    kinds = {str(origin.get("kind", "")) for origin in result.provenance.values()}
    sized = any(word in unit for word in ("residual unit", "input unit", "own unit"))
    return "the size of the residual is arbitrary in a model with live norms" * (
        sized and bool(kinds & {"live", "mixed"})
    )


def _number(part: pd.DataFrame, place: tuple[str, ...], column: str) -> float:
    if column not in part or place not in part.index or part.at[place, "status"] != "ok":
        return math.nan
    value: Any = part.at[place, column]
    return math.nan if pd.isna(value) else float(value)


def _why_not_subtracted(result: Result, model: str) -> str:
    """Why the same index is not the same part; empty where it is."""
    reference = result.models[0]
    known = {r.model: r.related for r in relations(result.models, result.provenance)}
    if not known.get(model, False):
        return f"it is not known to be related to {reference}"
    return incomparable(result.provenance[reference], result.provenance[model])
