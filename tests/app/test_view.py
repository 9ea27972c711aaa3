"""The view and its URL: a link restores everything but the prompt, and cannot do harm."""

from __future__ import annotations

from pathlib import Path

import pytest
from explorer.view import View, from_params, to_params

from normlens.figures.selecting import Selection
from normlens.workbench.choices import CorpusChoice, ModelChoice

PLAIN = View((ModelChoice("books-ln"), ModelChoice("books-lnfree")))


def test_a_link_restores_the_view(tmp_path: Path) -> None:
    upload = tmp_path / "0123456789ab" / "my text.v2.txt"
    upload = upload.with_name("my_text.v2.txt")
    upload.parent.mkdir()
    upload.write_text("words", encoding="utf-8")
    view = View(
        slots=(
            ModelChoice("a/b", device="cuda:1", dtype="bfloat16", revision="main", convert=True),
            ModelChoice("books-ln"),
            ModelChoice("untrained:books-ln@3"),
        ),
        corpus=CorpusChoice(str(upload), sequences=0, context=64, bos="none"),
        selection=Selection(3, 0, 17, "3.pre_mlp", 172, 9),
        depth="relative",
        snapshot="0123456789ab",
        focus="curves",
    )
    params = to_params(view)
    assert from_params(params, PLAIN, tmp_path) == view
    assert str(tmp_path) not in "".join(params.values())


def test_defaults_stay_out_of_the_link() -> None:
    assert to_params(PLAIN) == {"a": "books-ln", "b": "books-lnfree"}


@pytest.mark.parametrize(
    "params",
    [
        {"layer": "-1", "head": "1e3", "token": "²", "dim": "99999999999"},
        {"run": "../../etc/passw"},
        {"run": "0123456789AB"},
        {"text": "/etc/passwd"},
        {"text": "0123456789ab/../../secret.txt"},
        {"text": "0123456789ab/missing.txt"},
        {"n": "many", "context": "1", "bos": "maybe"},
        {"depth": "sideways", "show": "no-such-analysis"},
        {"a": "", "b": ";dtype=float32"},
    ],
)
def test_what_a_link_cannot_say_is_left_out(params: dict[str, str], tmp_path: Path) -> None:
    assert from_params(params, PLAIN, tmp_path / "uploads") == PLAIN


def test_an_unknown_dtype_is_left_out(tmp_path: Path) -> None:
    view = from_params({"a": "books-ln;dtype=int4"}, PLAIN, tmp_path)
    assert view.slots == (ModelChoice("books-ln"),)
