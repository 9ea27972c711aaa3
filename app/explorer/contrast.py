"""Contrast pairs: two prompts that differ in the word which decides the next token."""

from __future__ import annotations

import streamlit as st

from explorer import markup, navigation, resources, state
from normlens.errors import UsageError
from normlens.workbench.snapshots import Snapshot, Snapshots
from normlens.workbench.tokens import contrast_pairs, prompt_set_names

_FIELDS = ("clean", "corrupted", "answer", "wrong")


def show() -> None:
    """Choose a pair of a set, or write one; running it makes it the session's prompt."""
    markup.quiet(
        "The clean prompt asks for the answer, the corrupted one for the wrong answer; both have "
        "the same number of tokens. Patching moves activations from one to the other."
    )
    first = state.view().slots[0]
    left, right = st.columns(2)
    name = left.selectbox("Prompt set", prompt_set_names(), key="pair-set", persist_state="session")
    with st.spinner("Reading the set with the reference's tokenizer"):
        found = contrast_pairs(resources.opened([first]), resources.sources(), first, name)
    by_id = {pair.text.id: pair.text for pair in found.pairs}
    identifier = right.selectbox(
        f"Pair, {len(by_id)} of {len(by_id) + found.dropped} suit {first.name}",
        list(by_id),
        key="pair-id",
        persist_state="session",
        format_func=lambda i: f"{by_id[i].clean} → {by_id[i].answer.strip()}",
    )
    chosen = by_id.get(identifier or "") or next(iter(by_id.values()))
    if st.session_state.get("pair-filled") != chosen.id or "pair-clean" not in st.session_state:
        st.session_state["pair-filled"] = chosen.id
        for field in _FIELDS:
            st.session_state[f"pair-{field}"] = vars(chosen)[field]
    with st.form("pair-form"):
        st.text_input("Clean prompt", key="pair-clean")
        st.text_input("Corrupted prompt", key="pair-corrupted")
        a, b = st.columns(2)
        a.text_input("Answer, with its leading space", key="pair-answer")
        b.text_input("Wrong answer", key="pair-wrong")
        ran = st.form_submit_button("Use this pair", type="primary", icon=":material/play_arrow:")
    if ran:
        _keep()
        st.rerun()
    if found.reasons:
        with st.expander(f"{found.dropped} pairs do not suit this tokenizer"):
            for reason in found.reasons[:50]:
                markup.quiet(reason)
    navigation.link("Attribution", "Patch this pair")


def _keep() -> None:
    said = {field: st.session_state[f"pair-{field}"] for field in _FIELDS}
    if not all(said.values()):
        raise UsageError("a contrast pair needs both prompts and both answers; fill every field")
    made = Snapshot(
        prompt=said["clean"],
        target=said["answer"],
        against=said["wrong"],
        bos="prepend",
        extra=said,
    )
    state.change(snapshot=Snapshots(resources.options().store).save(made))
    state.select(position=None)
