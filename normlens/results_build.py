"""From a kernel's finding to a Result: schemas enforced, model and status columns added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from normlens.capture.protocol import Finding
from normlens.catalog import Analysis
from normlens.errors import VerificationError
from normlens.models.lens import Lens
from normlens.results import Column, Result, TableSchema

MODEL = Column("model", "str", "", "name of the model")
STATUS_COLUMN = Column("status", "str", "", "ok, no_data, not_applicable or overflow")
REPLICATE_TABLE = TableSchema(
    "replicates",
    "Bootstrap replicates of headline numbers, paired between models by replicate.",
    (
        Column("headline", "str", "", "name of the headline number"),
        Column("replicate", "int64", "", "from 0"),
        Column("value", "float64", "", "value in this replicate"),
    ),
)


def schemas_of(analysis: Analysis) -> dict[str, TableSchema]:
    """The schemas of an analysis's Result, with the columns that every table has."""
    tables = (*analysis.tables, REPLICATE_TABLE)
    return {
        table.name: TableSchema(table.name, table.doc, (MODEL, *table.columns, STATUS_COLUMN))
        for table in tables
    }


def to_result(
    analysis: Analysis, lens: Lens, finding: Finding, origin: Mapping[str, Any]
) -> Result:
    """Build the Result of one model.

    Raises:
        VerificationError: the kernel returned other columns than it declares.
    """
    name = lens.identity.name
    schemas = schemas_of(analysis)
    tables = {
        table: _conform(schema, _frame(finding, table), name) for table, schema in schemas.items()
    }
    return Result(
        analysis=analysis.name,
        models=(name,),
        tables=tables,
        schemas=schemas,
        headline={name: finding.headline},
        checks={name: finding.checks},
        provenance={name: origin},
        warnings=finding.warnings,
    )


def empty_result(analysis: Analysis, lens: Lens, reason: str, origin: Mapping[str, Any]) -> Result:
    """The Result of a model that the analysis does not apply to."""
    name = lens.identity.name
    schemas = schemas_of(analysis)
    return Result(
        analysis=analysis.name,
        models=(name,),
        tables={table: _conform(schema, None, name) for table, schema in schemas.items()},
        schemas=schemas,
        headline={name: ()},
        checks={name: ()},
        provenance={name: origin},
        not_applicable={name: reason},
    )


def _frame(finding: Finding, table: str) -> pd.DataFrame | None:
    if table != REPLICATE_TABLE.name:
        return finding.tables.get(table)
    if not finding.replicates:
        return None
    return pd.concat(
        [
            pd.DataFrame(
                {"headline": key, "replicate": range(len(values)), "value": values.numpy()}
            )
            for key, values in finding.replicates.items()
        ],
        ignore_index=True,
    )


def _conform(schema: TableSchema, frame: pd.DataFrame | None, model: str) -> pd.DataFrame:
    dtypes = {column.name: column.dtype for column in schema.columns}
    if frame is None:
        return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in dtypes.items()})
    frame = frame.copy()
    frame[MODEL.name] = model
    if STATUS_COLUMN.name not in frame:
        has_n = "n" in frame
        frame[STATUS_COLUMN.name] = (
            frame["n"].map(lambda n: "ok" if n else "no_data") if has_n else "ok"
        )
    if set(frame.columns) != set(dtypes):
        odd = sorted(set(frame.columns) ^ set(dtypes))
        raise VerificationError(
            f"table {schema.name} and its declaration differ in {', '.join(odd)}"
        )
    return frame[list(dtypes)].astype(dtypes).reset_index(drop=True)
