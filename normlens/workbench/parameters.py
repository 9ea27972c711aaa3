"""An analysis's parameters from a plain mapping, and as stored results record them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from pydantic import ValidationError

from normlens.catalog import Analysis
from normlens.errors import UsageError


def chosen(analysis: Analysis, values: Mapping[str, Any] | None = None) -> Any:
    """The validated parameter object; fields that are left out take their defaults.

    Raises:
        UsageError: an unknown field, or a value out of its bounds; names the field.
    """
    values = values or {}
    known = [field.name for field in fields(analysis.parameters)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        has = ", ".join(known) or "none"
        raise UsageError(f"{analysis.name} has no parameter {unknown[0]}; it has {has}")
    try:
        return analysis.parameters(**values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{analysis.name}, parameter {field}: {first['msg']}, got {first['input']!r}"
        ) from error


def as_recorded(parameters: Any) -> dict[str, Any]:
    """A parameter object as the provenance of a stored result holds it: JSON data."""
    return json.loads(json.dumps(asdict(parameters), default=str))
