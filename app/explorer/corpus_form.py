"""The corpus: which text, how much of it, and how it is cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import streamlit as st

from explorer import markup, resources, state
from explorer.guard import guarded
from explorer.view import BUNDLED
from normlens.workbench.uploads import LIMIT_BYTES, keep_upload

ALL_SEQUENCES = 0


@dataclass(frozen=True)
class Changed:
    """Writes one field of the corpus."""

    field: str
    key: str

    def __call__(self) -> None:
        """Read the widget."""
        value = st.session_state[self.key]
        if self.field == "context":
            value = value or None
        state.change(corpus=replace(state.view().corpus, **{self.field: value}))


def show() -> None:
    """The choice, and the upload."""
    corpus = state.view().corpus
    texts = list(dict.fromkeys([BUNDLED, *uploaded(), corpus.text]))
    first, second, third, fourth = st.columns(4)
    with first:
        _set("corpus-text", corpus.text)
        st.selectbox(
            "Text",
            texts,
            key="corpus-text",
            format_func=lambda text: "books (bundled)" if text == BUNDLED else Path(text).name,
            on_change=Changed("text", "corpus-text"),
        )
    with second:
        _set("corpus-sequences", corpus.sequences)
        st.number_input(
            "Sequences",
            min_value=ALL_SEQUENCES,
            step=64,
            key="corpus-sequences",
            help="Spread evenly over the text; 0 reads all.",
            on_change=Changed("sequences", "corpus-sequences"),
        )
    with third:
        _set("corpus-context", corpus.context or 0)
        st.number_input(
            "Context",
            min_value=0,
            step=64,
            key="corpus-context",
            help="Tokens per sequence; 0 takes the smaller of 512 and the model's own.",
            on_change=Changed("context", "corpus-context"),
        )
    with fourth:
        _set("corpus-bos", corpus.bos)
        st.selectbox(
            "BOS",
            ("prepend", "none"),
            key="corpus-bos",
            format_func={"prepend": "prepended", "none": "none"}.__getitem__,
            on_change=Changed("bos", "corpus-bos"),
        )
    markup.quiet("Results are kept by text and way of reading: what was computed once comes back.")
    guarded(_upload)


def uploaded() -> list[str]:
    """Files that were uploaded to this store, by name."""
    directory = resources.options().store / "uploads"
    return sorted(str(path) for path in directory.glob("*/*") if path.suffix in (".txt", ".jsonl"))


def _upload() -> None:
    limit = LIMIT_BYTES // 1_000_000
    file = st.file_uploader(
        f"Upload a text: .txt, .jsonl or .csv with a column text, up to {limit} MB",
        type=["txt", "jsonl", "csv"],
        key="corpus-upload",
        max_upload_size=limit,
        help="One document per .txt file, per line of .jsonl, per row of .csv.",
    )
    if file is None:
        st.session_state.pop("corpus-taken", None)
        return
    markup.quiet(f"{file.name}: {file.size / 1e6:.2f} of {limit} MB")
    if st.session_state.get("corpus-taken") == file.file_id:
        return
    path = keep_upload(file.name, file.getvalue(), resources.options().store)
    st.session_state["corpus-taken"] = file.file_id
    state.change(corpus=replace(state.view().corpus, text=str(path)))
    st.rerun()


def _set(key: str, value: object) -> None:
    st.session_state[key] = value
