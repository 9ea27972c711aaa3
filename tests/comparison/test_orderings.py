"""Published orderings against runs: enough seeds, bands apart, and what is missing."""

from __future__ import annotations

import pytest

from normlens.comparison.orderings import Ordering, band, judge

LESS = Ordering("a", "b", "loss", "1 against 2", "a paper, section 3")
EQUAL = Ordering("a", "b", "loss", "within 0.1", "a paper, section 3", equal=0.1)


@pytest.mark.parametrize(
    ("ordering", "a", "b", "status"),
    [
        (LESS, [1.0, 1.1, 1.2], [1.3, 1.4, 1.5], "shown"),
        (LESS, [1.0, 1.1, 1.35], [1.3, 1.4, 1.5], "not shown"),
        (LESS, [1.3, 1.4, 1.5], [1.0, 1.1, 1.2], "not shown"),
        (LESS, [1.0, 1.1], [1.3, 1.4, 1.5], "cannot be shown"),
        (LESS, [1.0], [], "cannot be shown"),
        (EQUAL, [1.0, 1.02, 1.01], [1.05, 1.0, 1.03], "shown"),
        (EQUAL, [1.0, 1.02, 1.01], [1.05, 1.0, 1.13], "not shown"),
        (EQUAL, [1.05, 1.0, 1.13], [1.0, 1.02, 1.01], "not shown"),
    ],
)
def test_the_bands_decide(ordering: Ordering, a: list[float], b: list[float], status: str) -> None:
    assert judge(ordering, {"a": a, "b": b}).status == status


def test_one_seed_is_a_direction_and_no_more() -> None:
    assert (
        "1 (one seed) against 2 (one seed), as published"
        in judge(LESS, {"a": [1.0], "b": [2.0]}).words
    )
    assert "not as published" in judge(LESS, {"a": [2.0], "b": [1.0]}).words


def test_a_missing_scheme_is_named() -> None:
    assert judge(LESS, {"a": [1.0, 1.1, 1.2]}).words == "not trained: b"


def test_a_band_says_how_many_seeds_it_spans() -> None:
    assert band([2.0]) == "2 (one seed)"
    assert band([2.0, 1.5, 1.75]) == "1.5–2 (3 seeds)"


def test_a_claim_reads_as_a_formula() -> None:
    assert (LESS.claim, EQUAL.claim) == ("a < b", "a ≈ b")
