"""A Result: tidy tables with a schema, headline numbers, checks and provenance. No torch."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pandas as pd

from normlens.atomic import atomic_directory
from normlens.errors import LoadError, UsageError
from normlens.results_html import result_html

SCHEMA_VERSION = 1
STATUS = ("ok", "no_data", "not_applicable", "overflow")


@dataclass(frozen=True)
class Column:
    """One column: pandas dtype, unit (``nats/token``, ``1`` for dimensionless) and meaning."""

    name: str
    dtype: str
    unit: str
    doc: str


@dataclass(frozen=True)
class TableSchema:
    """One tidy table. ``model`` and ``status`` columns are added to every table."""

    name: str
    doc: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Headline:
    """One number a reader takes away, with n and a 95 % interval where one exists.

    A value of NaN with n = 0 means no data.
    """

    name: str
    value: float
    unit: str
    doc: str
    n: int
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Check:
    """A self-check made in the run: ``passed`` iff ``value <= tolerance``."""

    name: str
    value: float
    tolerance: float
    passed: bool
    doc: str


@dataclass(frozen=True)
class Result:
    """What one analysis found on one or several models.

    Attributes:
        analysis: registry name.
        models: model names in display order; the first is the reference.
        tables: by name; every table has ``model`` and ``status`` columns.
        schemas: of the tables, by name.
        headline: per model name.
        checks: per model name.
        provenance: per model name; JSON-serialisable.
        warnings: shown wherever the numbers are shown.
        not_applicable: per model, why the analysis does not apply to it.
    """

    analysis: str
    models: tuple[str, ...]
    tables: Mapping[str, pd.DataFrame]
    schemas: Mapping[str, TableSchema]
    headline: Mapping[str, tuple[Headline, ...]]
    checks: Mapping[str, tuple[Check, ...]]
    provenance: Mapping[str, Mapping[str, Any]]
    warnings: tuple[str, ...] = ()
    not_applicable: Mapping[str, str] = field(default_factory=dict[str, str])
    schema_version: int = SCHEMA_VERSION

    @property
    def passed(self) -> bool:
        """Whether every check of every model passed."""
        return all(check.passed for checks in self.checks.values() for check in checks)

    def _repr_html_(self) -> str:
        """What notebooks show; see :mod:`normlens.results_html`."""
        return result_html(self)

    def save(self, path: Path, *, replace: bool = False) -> None:
        """Write ``result.json`` and one parquet file per table into directory ``path``.

        Raises:
            OutputError: ``path`` exists and ``replace`` is false, or cannot be written.
        """
        with atomic_directory(path, replace=replace) as temporary:
            for name, table in self.tables.items():
                table.to_parquet(temporary / f"{name}.parquet", index=False)
            meta = dataclasses.asdict(dataclasses.replace(self, tables={}))
            text = json.dumps(nan_to_none(meta), indent=2, sort_keys=True, allow_nan=False)
            (temporary / "result.json").write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Result:
        """Read what :meth:`save` wrote.

        Raises:
            LoadError: not a result directory, of another schema version, or damaged.
        """
        try:
            meta = json.loads((path / "result.json").read_text(encoding="utf-8"))
            if meta["schema_version"] != SCHEMA_VERSION:
                raise LoadError(
                    f"result {path} has schema {meta['schema_version']}, this version reads "
                    f"{SCHEMA_VERSION}; run the analysis again"
                )
            schemas = {name: _schema(value) for name, value in meta["schemas"].items()}
            tables = {name: pd.read_parquet(path / f"{name}.parquet") for name in schemas}
            return Result(
                analysis=meta["analysis"],
                models=tuple(meta["models"]),
                tables=tables,
                schemas=schemas,
                headline={
                    m: tuple(Headline(**_none_to_nan(h)) for h in hs)
                    for m, hs in meta["headline"].items()
                },
                checks={
                    m: tuple(Check(**_none_to_nan(c)) for c in cs)
                    for m, cs in meta["checks"].items()
                },
                provenance=meta["provenance"],
                warnings=tuple(meta["warnings"]),
                not_applicable=meta["not_applicable"],
            )
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise LoadError(f"{path} is not a readable normlens result: {error}") from error


def concat(results: Sequence[Result]) -> Result:
    """Join results of one analysis along ``model``, in the given order.

    Raises:
        UsageError: no results, different analyses or schemas, or a model twice.
    """
    if not results:
        raise UsageError("no results to put side by side")
    first = results[0]
    models = tuple(model for result in results for model in result.models)
    if len({result.analysis for result in results}) > 1:
        raise UsageError("results of different analyses cannot be put side by side")
    if any(result.schemas != first.schemas for result in results):
        raise UsageError(
            f"results of {first.analysis} were made by different versions; run it again"
        )
    if len(set(models)) < len(models):
        raise UsageError(f"a model appears twice in {', '.join(models)}; give each its own --name")
    return Result(
        analysis=first.analysis,
        models=models,
        tables={
            name: pd.concat([result.tables[name] for result in results], ignore_index=True)
            for name in first.tables
        },
        schemas=first.schemas,
        headline={m: hs for result in results for m, hs in result.headline.items()},
        checks={m: cs for result in results for m, cs in result.checks.items()},
        provenance={m: p for result in results for m, p in result.provenance.items()},
        warnings=tuple(dict.fromkeys(w for result in results for w in result.warnings)),
        not_applicable={m: why for result in results for m, why in result.not_applicable.items()},
    )


def _schema(value: Mapping[str, Any]) -> TableSchema:
    columns = tuple(Column(**column) for column in value["columns"])
    return TableSchema(value["name"], value["doc"], columns)


def nan_to_none(value: Any) -> Any:
    """The value with every number that is not finite replaced by None, as JSON needs it."""
    if isinstance(value, Mapping):
        mapping = cast(Mapping[Any, Any], value)
        return {str(key): nan_to_none(item) for key, item in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [nan_to_none(item) for item in cast(Sequence[Any], value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _none_to_nan(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: math.nan if item is None else item for key, item in value.items()}
