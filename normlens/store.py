"""Results on disk under the digest of their computation; the same for CLI, app and report.

Knows keys as mappings and Results as data: no torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normlens.results import Result


def digest(key: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a key; names its results and its shards."""
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()


class ResultStore:
    """A directory of results; with ``root`` None nothing is kept."""

    def __init__(self, root: Path | None) -> None:
        self.root = root

    def path(self, key: Mapping[str, Any]) -> Path | None:
        """Where the result of a computation lies."""
        if self.root is None:
            return None
        return self.root / "results" / digest(key)[:32]

    def load(self, key: Mapping[str, Any], model: str) -> Result | None:
        """The stored result, shown under the name ``model``, or None.

        Raises:
            LoadError: something is stored there but cannot be read.
        """
        path = self.path(key)
        if path is None or not path.is_dir():
            return None
        return renamed(Result.load(path), model)

    def save(self, key: Mapping[str, Any], result: Result) -> None:
        """Store a result atomically."""
        path = self.path(key)
        if path is not None:
            result.save(path, replace=True)


def renamed(result: Result, model: str) -> Result:
    """The same single-model result under another display name."""
    (old,) = result.models
    if old == model:
        return result
    tables = {
        name: table.assign(model=model).astype(table.dtypes)
        for name, table in result.tables.items()
    }
    reason = result.not_applicable.get(old, "")
    origin = {**result.provenance[old], "name": model}
    return dataclasses.replace(
        result,
        models=(model,),
        tables=tables,
        headline={model: result.headline[old]},
        checks={model: result.checks[old]},
        provenance={model: origin},
        not_applicable=dict.fromkeys([model] if result.not_applicable else [], reason),
    )
