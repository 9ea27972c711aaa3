"""What the models read: a prompt with its tokens, contrast pairs, and the corpus."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from explorer import (
    chips,
    contrast,
    corpus_form,
    markup,
    navigation,
    prompt_view,
    resources,
    state,
    warm,
)
from explorer.guard import guarded
from normlens import catalog
from normlens.catalog import Analysis
from normlens.errors import UsageError
from normlens.workbench.choices import ModelChoice, distinct_names
from normlens.workbench.snapshots import Snapshot, Snapshots
from normlens.workbench.tokens import Chip, prompt_chips

EXAMPLES = (
    "Alice took the key and opened the door, and then she",
    "The ship sailed at dawn. The ship sailed at",
    "It was the best of times, it was the worst of",
    "When Mary and John went to the store, John gave a drink to",
)
_PROMPT, _TARGET, _AGAINST, _BOS = "prompt-text", "prompt-target", "prompt-against", "prompt-bos"
_SHOWN = "prompt-shown"
_HISTORY = 20


def render() -> None:
    """Draw the page."""
    markup.title("Text", "One prompt to look at token by token, and a corpus to measure on.")
    part = st.segmented_control(
        "Part",
        list(PARTS),
        default="Prompt",
        required=True,
        key="text-part",
        persist_state="session",
        label_visibility="collapsed",
    )
    if part != "Corpus":
        warm.start()
    guarded(PARTS.get(part or "Prompt", _prompt))


def _prompt() -> None:
    snapshot = guarded(prompt_view.current)
    _fill(snapshot)
    _pickers()
    with st.form("prompt-form"):
        st.text_area(
            "Prompt",
            key=_PROMPT,
            height=120,
            placeholder="Write something, then press Ctrl+Enter",
            help="Ctrl+Enter runs it. The prompt never enters the address of the page.",
        )
        first, second, third = st.columns(3)
        first.text_input(
            "Target token",
            key=_TARGET,
            placeholder="the top prediction",
            help="A single token, usually with its leading space.",
        )
        second.text_input(
            "Against",
            key=_AGAINST,
            placeholder="the mean of all logits",
            help="A single token to subtract: the logit difference.",
        )
        third.selectbox(
            "BOS",
            ("prepend", "none"),
            key=_BOS,
            format_func={"prepend": "prepended", "none": "none"}.__getitem__,
            help="Whether the tokenizer's BOS stands first. Norm scales there are unlike others.",
        )
        # No shortcut of its own: the text area's Ctrl+Enter would submit the form a second time.
        ran = st.form_submit_button("Run", type="primary", icon=":material/play_arrow:")
    if ran:
        _keep()
        st.rerun()
    if snapshot is None:
        markup.empty(
            "No prompt yet",
            "Run one to see its tokens here, and what each norm, head and component does with "
            "them on the pages Norms, Attention and Attribution.",
        )
        return
    tokens(snapshot)
    _results(snapshot)


def _keep() -> None:
    text = st.session_state[_PROMPT]
    if not text:
        raise UsageError("the prompt is empty; write at least one token")
    made = Snapshot(
        prompt=text,
        target=st.session_state[_TARGET],
        against=st.session_state[_AGAINST],
        bos=st.session_state[_BOS],
        extra={},
    )
    state.change(snapshot=Snapshots(resources.options().store).save(made))
    state.select(position=None)


def _fill(snapshot: Snapshot | None) -> None:
    """Show the session's prompt in the form when it has changed elsewhere."""
    identifier = state.view().snapshot
    fresh = _PROMPT not in st.session_state
    if not fresh and st.session_state.get(_SHOWN) == identifier:
        return
    st.session_state[_SHOWN] = identifier
    if snapshot is None and not fresh:
        return
    st.session_state[_PROMPT] = EXAMPLES[0] if snapshot is None else snapshot.prompt
    st.session_state[_TARGET] = "" if snapshot is None else snapshot.target
    st.session_state[_AGAINST] = "" if snapshot is None else snapshot.against
    st.session_state[_BOS] = "prepend" if snapshot is None else snapshot.bos


def _pickers() -> None:
    left, right = st.columns(2)
    with left:
        st.selectbox(
            "Examples",
            EXAMPLES,
            index=None,
            key="prompt-example",
            placeholder="Start from an example",
            on_change=_take_example,
        )
    past = Snapshots(resources.options().store).history(_HISTORY)
    with right:
        by_id = {snapshot.id: snapshot for snapshot in past}
        st.selectbox(
            "History",
            list(by_id),
            index=None,
            key="prompt-history",
            placeholder="Take up an earlier prompt" if past else "Nothing yet",
            format_func=lambda identifier: by_id[identifier].prompt[:120],
            disabled=not past,
            on_change=_take_past,
        )


def _take_example() -> None:
    chosen = st.session_state["prompt-example"]
    if chosen:
        st.session_state[_PROMPT] = chosen
        st.session_state[_TARGET] = st.session_state[_AGAINST] = ""
        st.session_state["prompt-example"] = None


def _take_past() -> None:
    chosen = st.session_state["prompt-history"]
    if chosen:
        state.change(snapshot=chosen)
        st.session_state["prompt-history"] = None


def tokens(snapshot: Snapshot) -> None:
    """The prompt as each model's tokenizer cuts it; equal ones are shown once."""
    slots = state.view().slots
    cut: dict[tuple[tuple[int, str], ...], list[str]] = {}
    shown = {}
    with st.spinner("Cutting the prompt into tokens"):
        for choice, name in zip(slots, distinct_names(slots), strict=True):
            found = guarded(_chips, choice, snapshot)
            if found is None:
                continue
            key = tuple((chip.id, chip.text) for chip in found)
            cut.setdefault(key, []).append(name)
            shown[key] = found
    for key, names in cut.items():
        of = f"{len(key):,} tokens"
        markup.quiet(of if len(cut) == 1 else f"{of} of {', '.join(names)}")
        chips.show(shown[key], state.view().selection.position)
    if len(cut) > 1:
        markup.note(
            "The tokenizers differ: tokens of these models do not correspond, and no difference "
            "by token is drawn.",
            "warning",
        )


def _chips(choice: ModelChoice, snapshot: Snapshot) -> tuple[Chip, ...]:
    pool = resources.opened([choice])
    return prompt_chips(pool, resources.sources(), choice, snapshot.prompt, snapshot.bos)


def _results(snapshot: Snapshot) -> None:
    suited = [a for a in catalog.ALL if a.runs_on == "prompt"]
    suited = [a for a in suited if prompt_view.values(a, snapshot) is not None]
    if suited:
        _one_of(suited)


def _one_of(suited: Sequence[Analysis]) -> None:
    by_name = {analysis.name: analysis for analysis in suited}
    key = "prompt-analysis"
    if st.session_state.get(key) not in by_name:
        st.session_state[key] = next(
            (n for n in by_name if n == "prompt-attribution"), suited[0].name
        )
    name = st.segmented_control(
        "What this prompt shows",
        list(by_name),
        key=key,
        format_func=lambda n: by_name[n].title,
        required=True,
        persist_state="session",
    )
    chosen = by_name[name or suited[0].name]
    prompt_view.show(chosen, with_line=False)
    title = navigation.topic_title(chosen.topic)
    navigation.link(title, f"More on {title.lower()}")


PARTS = {"Prompt": _prompt, "Contrast pairs": contrast.show, "Corpus": corpus_form.show}
"""One part at a time: pairs need a tokenizer, and so a model."""
