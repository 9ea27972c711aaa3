"""Strings as they appear in figures: names and tokens, escaped and with nothing invisible.

Plotly reads a subset of HTML in every text and, where MathJax is loaded, TeX between
dollar signs; a token may contain either.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


def escape(text: str) -> str:
    r"""Text that plotly shows as it stands: ``&``, ``<``, ``>`` and ``$`` become entities.

    Control characters and lone surrogates, which have no glyph, are written ``\xNN``.
    """
    shown = "".join(_byte(c) if _has_no_glyph(c) else c for c in text)
    return html.escape(shown, quote=False).replace("$", "&#36;")


def visible(token: str) -> str:
    """A token for an axis: space as ``·``, newline as ``⏎``, the rest as :func:`escape`."""
    return escape(token.replace("\n", "⏎").replace(" ", "·"))


def shorten(text: str, width: int = 28) -> str:
    """At most ``width`` characters with the middle left out, escaped."""
    if len(text) > width:
        head = (width - 1) // 2
        text = text[:head] + "…" + text[len(text) - (width - 1 - head) :]
    return escape(text)


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` characters, escaped."""
    return [escape(line) for line in textwrap.wrap(text, width, break_on_hyphens=False)]


@dataclass(frozen=True)
class Ticks:
    """Positions on a numeric axis and what is written there."""

    values: list[int]
    labels: list[str]

    def axis(self) -> dict[str, Any]:
        """The plotly axis properties."""
        return {"tickmode": "array", "tickvals": self.values, "ticktext": self.labels}


def token_ticks(tokens: Sequence[str], most: int = 40) -> Ticks:
    """Ticks ``position:token`` on a numeric axis, so that repeated tokens stay apart.

    Every k-th position is labelled where there are more than ``most``.
    """
    step = max(1, math.ceil(len(tokens) / most))
    values = list(range(0, len(tokens), step))
    return Ticks(values, [f"{i}:{visible(_clip(tokens[i]))}" for i in values])


def _clip(token: str, width: int = 14) -> str:
    return token if len(token) <= width else token[: width - 1] + "…"


def _has_no_glyph(character: str) -> bool:
    code = ord(character)
    return code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000


def _byte(character: str) -> str:
    code = ord(character)
    # Python decodes an undecodable byte NN to the surrogate U+DCNN.
    return f"\\x{code - 0xDC00 if 0xDC80 <= code < 0xDD00 else code:02x}"
