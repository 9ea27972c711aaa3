"""Numbers and prose as a report shows them."""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

MISSING = "–"
_CODE = re.compile(r"(`[^`]+`)")
_ARXIV = re.compile(r"\d{4}\.\d{4,5}")


def number(value: float) -> str:
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


def signed(value: float) -> str:
    """:func:`number` with an explicit plus."""
    return f"+{number(value)}" if value is not None and value > 0 else number(value)


def interval(low: float, high: float, *, sign: bool = False) -> str:
    """``[low, high]``; empty when there is none."""
    if pd.isna(low) or pd.isna(high):
        return ""
    shown = signed if sign else number
    return f"[{shown(low)}, {shown(high)}]"


def unit(text: str) -> str:
    """A unit for a heading; dimensionless numbers have none."""
    return "" if text in ("", "1") else text


def cell(value: Any) -> str:
    """A table cell as text."""
    if isinstance(value, (bool,)) or type(value).__name__ == "bool_":
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(item) for item in value)
    return number(value)


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
