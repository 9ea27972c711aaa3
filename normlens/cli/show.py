"""``normlens show``: read a stored result, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from normlens.cli.tables import print_frame, print_result
from normlens.errors import UnknownName
from normlens.results import Result


def register(app: App) -> None:
    """Add the command."""
    app.command(show)


def show(
    result: Path,
    *,
    table: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Print a saved result: headline numbers, checks and tables.

    Example: `normlens run scale books-ln --out out/scale`, then
    `normlens show out/scale/scale --table scale`.

    Parameters
    ----------
    result
        Directory written by `run --out`.
    table
        Print only this table, every row.
    as_json
        Print JSON on stdout instead.
    """
    loaded = Result.load(result)
    if table is not None and table not in loaded.tables:
        raise UnknownName(f"{result} has no table {table!r}; tables: {', '.join(loaded.tables)}")
    if as_json:
        frames = {table: loaded.tables[table]} if table else loaded.tables
        print(json.dumps({k: json.loads(v.to_json(orient="records")) for k, v in frames.items()}))
    elif table is not None:
        print_frame(loaded.tables[table])
    else:
        print_result(loaded)
    return 0 if loaded.passed else 1
