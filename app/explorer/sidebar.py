"""What every page shows beside itself: which models, which text, how depth is drawn."""

from __future__ import annotations

from html import escape
from pathlib import Path

import streamlit as st

from explorer import markup, resources, state
from explorer.view import BUNDLED, SLOT_LETTERS
from normlens.figures.theme import Identity, identities
from normlens.workbench.choices import distinct_names

_DEPTH = "depth-mode"
_KINDS = {
    "live": "live scales",
    "scale_free": "fixed scales",
    "mixed": "some scales fixed",
    "elementwise": "elementwise norms",
    "opaque": "norms of unknown kind",
}
# NormKind knows this, and importing it takes torch, which stored results do without.
_LISTED = {
    "layer_norm": "live",
    "rms_norm": "live",
    "dyt": "elementwise",
    "fixed_scale": "scale_free",
}


def show() -> None:
    """Draw it."""
    with st.sidebar:
        markup.put(
            f'<div class="nl-side"><h3>Models</h3>{legend()}<h3>Text</h3>'
            f'<p class="nl-quiet">{escape(text_in_words())}</p></div>'
        )
        st.session_state[_DEPTH] = state.view().depth
        st.segmented_control(
            "Layers by",
            ("absolute", "relative"),
            key=_DEPTH,
            format_func={"absolute": "Number", "relative": "Share of depth"}.__getitem__,
            required=True,
            on_change=_keep_depth,
            help="With a share of depth, models of unequal depth line up.",
        )
        markup.quiet("The address of this page leads a colleague to what you see.")


def looks() -> dict[str, Identity]:
    """The identity of every slot's model, the same as in every figure."""
    names = distinct_names(state.view().slots)
    return identities(names, provenance())


def provenance() -> dict[str, dict[str, object]]:
    """What stored results say of the slots' models; their kind at least, from the list."""
    slots = state.view().slots
    named = dict(zip(distinct_names(slots), slots, strict=True))
    found: dict[str, dict[str, object]] = {}
    for analysis in ("output", "scale"):
        result = None if found.keys() >= named.keys() else resources.shown(analysis).result
        if result is not None:
            for model, origin in result.provenance.items():
                found.setdefault(model, dict(origin))
    unknown = {name: choice for name, choice in named.items() if name not in found}
    entries = resources.sources().entries() if unknown else ()
    listed = {entry.id: entry.kind for entry in entries}
    for name, choice in unknown.items():
        if kind := _LISTED.get(listed.get(choice.source, "")):
            found[name] = {"kind": kind}
    return found


def legend() -> str:
    """The models with their letters, marks and kinds."""
    origins = provenance()
    identity = identities(distinct_names(state.view().slots), origins)
    items = []
    for letter, (name, look) in zip(SLOT_LETTERS, identity.items(), strict=False):
        kind = _KINDS.get(str(origins.get(name, {}).get("kind", "")), "not opened yet")
        reference = "reference · " if letter == "A" and len(state.view().slots) > 1 else ""
        items.append(
            f'<li><span class="nl-slot">{letter}</span>{markup.swatch(look)}{escape(name)}'
            f"<small>{escape(reference + kind)}</small></li>"
        )
    return f'<ul class="nl-legend">{"".join(items)}</ul>'


def text_in_words() -> str:
    """``books, 128 sequences, BOS prepended``."""
    corpus = state.view().corpus
    name = BUNDLED if corpus.text == BUNDLED else Path(corpus.text).name
    count = f"{corpus.sequences:,} sequences" if corpus.sequences else "all sequences"
    context = "" if corpus.context is None else f" of {corpus.context} tokens"
    bos = "BOS prepended" if corpus.bos == "prepend" else "no BOS"
    return f"{name}, {count}{context}, {bos}"


def _keep_depth() -> None:
    state.change(depth=st.session_state[_DEPTH])
