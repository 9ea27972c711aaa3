"""Which constants each kind has, and what they may be: the judge of norms in configs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from normlens.errors import UsageError
from normlens.norms.kind import NormKind

DEFAULT_EPS: Mapping[NormKind, float] = MappingProxyType(
    {
        NormKind.LAYER_NORM: 1e-5,
        NormKind.RMS_NORM: 1e-6,
        NormKind.CRMS_NORM: 1e-6,
        NormKind.SCALE_NORM: 1e-5,
        NormKind.SIMPLE_RMS_NORM: 1e-6,
        NormKind.L1_NORM: 1e-5,
        NormKind.L2_NORM: 1e-12,
        NormKind.BATCH_NORM: 1e-5,
        NormKind.POWER_NORM: 1e-5,
        NormKind.UNIFIED_NORM: 1e-5,
    }
)
"""Where a config gives no eps: that of torch or of the authors' code."""

DEFAULT_ALPHA = 0.5
"""Initial slope at 0 where a config gives none (DyT, 2503.10622, section 4)."""

_WITHOUT_AFFINE = (NormKind.SIMPLE_RMS_NORM, NormKind.IDENTITY)
_CENTRED = (NormKind.LAYER_NORM, NormKind.L1_NORM, NormKind.FIXED_SCALE)
_OFFSET = (NormKind.LAYER_NORM, NormKind.RMS_NORM)
_SWITCHES = ("centred", "unit_offset", "gain", "bias", "eps_encoded")
_NUMBERS = ("eps", "fixed_scale", "alpha", "factor")


def complete_fields(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of a spec but its width, from those that a config gives.

    Args:
        fields: by name, values as JSON has them.
        defaults: every field but kind and width.

    Raises:
        UsageError: a field is unknown, out of range, missing, or not one of the kind.
    """
    unknown = [name for name in fields if name != "kind" and name not in defaults]
    if unknown:
        known = ", ".join(("kind", *defaults))
        raise UsageError(f"a norm has no field {unknown[0]!r}; its fields are {known}")
    kind = _kind(fields)
    own = {"eps": DEFAULT_EPS.get(kind), "alpha": DEFAULT_ALPHA if kind.has_alpha else None}
    if kind is NormKind.LAYER_NORM:
        own["centred"] = True
    values: dict[str, Any] = {**defaults, **own, **fields, "kind": kind}
    scales = values["position_scales"]
    if isinstance(scales, list):
        values["position_scales"] = tuple(cast("list[Any]", scales))
    check_fields(values)
    for name in _NUMBERS:
        values[name] = None if values[name] is None else float(values[name])
    if values["position_scales"] is not None:
        values["position_scales"] = tuple(map(float, values["position_scales"]))
    return values


def check_fields(values: Mapping[str, Any]) -> None:
    """Whether all fields but the width are consistent.

    Raises:
        UsageError: a field is out of range, missing, or not one of the kind.
    """
    kind: NormKind = values["kind"]
    if kind is NormKind.OPAQUE:
        raise _wrong("kind", kind.value, "that is a norm of which nothing is known")
    for name in _SWITCHES:
        if not isinstance(values[name], bool):
            raise _wrong(name, values[name], "give true or false")
    for name in _NUMBERS:
        if values[name] is not None and not _is_number(values[name]):
            raise _wrong(name, values[name], "give a finite number")
    if not isinstance(values["compute_dtype"], str):
        raise _wrong("compute_dtype", values["compute_dtype"], "give the name of a dtype, or input")
    _check_ranges(values)
    for name, belongs in _belongs(kind, values).items():
        if values[name] not in (None, False) and not belongs:
            raise _wrong(name, values[name], f"{kind.value} has none")
    _check_present(kind, values)


def _belongs(kind: NormKind, values: Mapping[str, Any]) -> dict[str, bool]:
    """By field, whether the kind can have it."""
    affine = kind not in _WITHOUT_AFFINE
    fixed = kind is NormKind.FIXED_SCALE
    return {
        "eps": kind.has_eps or (fixed and values["eps_encoded"]),
        "centred": kind in _CENTRED,
        "unit_offset": values["gain"] and (kind in _OFFSET or (fixed and values["eps_encoded"])),
        "gain": affine,
        "bias": affine,
        "fixed_scale": fixed,
        "position_scales": fixed and not values["eps_encoded"],
        "eps_encoded": fixed,
        "alpha": kind.has_alpha,
    }


def _check_present(kind: NormKind, values: Mapping[str, Any]) -> None:
    if values["eps"] is None and (kind.has_eps or values["eps_encoded"]):
        raise _wrong("eps", None, f"{kind.value} needs one")
    if values["alpha"] is None and kind.has_alpha:
        raise _wrong("alpha", None, f"{kind.value} needs its slope at 0")
    if kind is NormKind.LAYER_NORM and not values["centred"]:
        raise _wrong("centred", False, "a layer_norm subtracts the mean; rms_norm does not")
    given = [values[name] is not None for name in ("fixed_scale", "position_scales")]
    if kind is NormKind.FIXED_SCALE and sum(given) != 1:
        raise _wrong("fixed_scale", values["fixed_scale"], "give it or position_scales")


def _check_ranges(values: Mapping[str, Any]) -> None:
    if values["eps"] is not None and values["eps"] < 0:
        raise _wrong("eps", values["eps"], "give 0 or more")
    if values["fixed_scale"] is not None and values["fixed_scale"] <= 0:
        raise _wrong("fixed_scale", values["fixed_scale"], "give a positive number")
    if values["factor"] is None or values["factor"] == 0:
        raise _wrong("factor", values["factor"], "give a number other than 0")
    scales = values["position_scales"]
    if scales is not None and not _all_positive(scales):
        raise _wrong("position_scales", scales, "give positive numbers, one per position")


def _all_positive(values: object) -> bool:
    if not isinstance(values, tuple) or not values:
        return False
    return all(_is_number(value) and value > 0 for value in cast("tuple[Any, ...]", values))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _kind(fields: Mapping[str, Any]) -> NormKind:
    known = [kind.value for kind in NormKind if kind is not NormKind.OPAQUE]
    name = fields.get("kind")
    if name not in known:
        raise _wrong("kind", name, f"choose one of {', '.join(known)}")
    return NormKind(name)


def _wrong(name: str, value: object, remedy: str) -> UsageError:
    return UsageError(f"field {name} of a norm is {value!r}: {remedy}")
