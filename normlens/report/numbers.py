"""Numbers and prose as a report shows them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

Number = float | int
MISSING = "–"
_CODE = re.compile(r"(`[^`]+`)")
_ARXIV = re.compile(r"\d{4}\.\d{4,5}")


def number(value: Number | None) -> str:
    """Four significant digits; a dash for NaN; ``−`` for minus; large integers grouped."""
    if value is None or pd.isna(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e15:
        text = f"{int(value):,}"
    else:
        text = f"{value:.4g}"
        if "e" in text:
            mantissa, exponent = text.split("e")
            text = f"{mantissa}e{int(exponent)}"
    return text.replace("-", "−")


def fixed(value: Number | None, places: int, *, sign: bool = False) -> str:
    """``places`` decimals, so that a row lines up; :func:`number` where they would show 0."""
    if value is None or not math.isfinite(value):
        return number(value)
    text = f"{value:{'+' if sign else ''}.{places}f}"
    if float(text) == 0:
        text = f"{0:.{places}f}" if value == 0 else f"{value:{'+' if sign else ''}.1g}"
    return text.replace("-", "−")


def places(values: Iterable[Number]) -> int:
    """Decimals that give the largest of ``values`` four significant digits; counts have none."""
    finite = [value for value in values if math.isfinite(value)]
    if all(float(value).is_integer() for value in finite):
        return 0
    largest = max(abs(value) for value in finite)
    return min(8, max(0, 3 - math.floor(math.log10(largest))))


def interval(low: Number, high: Number, places: int, *, sign: bool = False) -> str:
    """``[low, high]``; empty when there is none."""
    if pd.isna(low) or pd.isna(high):
        return ""
    return f"[{fixed(low, places, sign=sign)}, {fixed(high, places, sign=sign)}]"


def unit(text: str) -> str:
    """A unit for a heading; dimensionless numbers have none."""
    return "" if text in ("", "1") else text


def cell(value: Any) -> str:
    """A table cell as text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(item) for item in value)
    return MISSING if pd.isna(value) else number(value)


def prose(text: str) -> Markup:
    """Escaped text in which backticks make code, as declarations write their formulas."""
    parts = [
        Markup("<code>{}</code>").format(part[1:-1]) if _CODE.fullmatch(part) else escape(part)
        for part in _CODE.split(text)
    ]
    return Markup("").join(parts)


def citation_url(identifier: str) -> str:
    """Where an arXiv id or a URL points; empty for anything else."""
    if _ARXIV.fullmatch(identifier):
        return f"https://arxiv.org/abs/{identifier}"
    return identifier if identifier.startswith("https://") else ""
