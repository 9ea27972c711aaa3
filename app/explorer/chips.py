"""Tokens as chips: index, visible text, id; special tokens in dashed frames."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from explorer import markup
from normlens.workbench.tokens import Chip

MOST = 600


def show(chips: Sequence[Chip], here: int | None = None) -> None:
    """A row of chips.

    Args:
        chips: of a prompt, in order.
        here: index of the selected token.
    """
    items = "".join(_chip(chip, chip.index == here) for chip in chips[:MOST])
    markup.put(f'<ol class="nl-chips" aria-label="tokens">{items}</ol>')
    if len(chips) > MOST:
        markup.quiet(f"The first {MOST} of {len(chips):,} tokens.")


def _chip(chip: Chip, here: bool) -> str:
    classes = " ".join(name for name, on in (("nl-special", chip.special), ("nl-here", here)) if on)
    kind = "special token, " if chip.special else ""
    return (
        f'<li class="{classes}" title="{kind}index {chip.index}, id {chip.id}">'
        f'<span class="nl-text">{escape(chip.shown) or "&nbsp;"}</span>'
        f'<span class="nl-meta">{chip.index} · {chip.id}</span></li>'
    )
