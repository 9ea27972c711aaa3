"""What differs most, and the numbers of a selected part."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from normlens.comparison import Selection, at_selection, headline_rows, ranked_differences
from normlens.results import Result
from tests.synthetic_results import FOUR, Model, result

PAIR = [FOUR[0], FOUR[3]]
STRANGER = Model("stranger", seed=7)


def value(frame: pd.DataFrame, **where: str) -> pd.Series:
    for column, wanted in where.items():
        frame = frame[frame[column] == wanted]
    (_, row), *others = frame.iterrows()
    assert not others
    return row


class TestRankedDifferences:
    def test_scores_are_differences_over_half_their_interval_clear_ones_first(self) -> None:
        found = [result(name, PAIR) for name in ("output", "scale", "freeze-sweep")]
        ranked = ranked_differences(found)
        row = value(ranked, headline="median_spread")
        delta = next(r for r in headline_rows(found) if r.name == "median_spread")
        given = delta.differences["books-lnfree"]
        assert given is not None
        half = (given.high - given.low) / 2
        assert row["score"] == pytest.approx(abs(given.value) / half)
        assert list(ranked["clear"]) == sorted(ranked["clear"], reverse=True)
        clear = ranked[ranked["clear"]]["score"]
        assert list(clear) == sorted(clear, reverse=True)

    def test_words_say_direction_unit_and_what_is_missing(self) -> None:
        ranked = ranked_differences([result(n, PAIR) for n in ("output", "freeze-sweep")])
        loss = value(ranked, headline="cross_entropy")
        assert loss["words"].startswith("books-lnfree is 0.011 nats/token higher than books-ln [")
        assert "no interval" in value(ranked, headline="ece")["words"]
        frozen = value(ranked, headline="all_frozen")
        assert frozen["words"] == "no difference: books-lnfree has no such number"
        assert math.isnan(frozen["delta"])
        assert not frozen["clear"]

    def test_the_reference_is_set_against_nothing(self) -> None:
        assert ranked_differences([result("output", FOUR[:1])]).empty
        assert set(ranked_differences([result("output")])["model"]) == {m.name for m in FOUR[1:]}

    def test_models_that_read_other_texts_are_not_ranked(self) -> None:
        found = result("output", PAIR)
        origin = {**found.provenance["books-lnfree"], "corpus_sha256": "other"}
        found = dataclasses.replace(found, provenance={**found.provenance, "books-lnfree": origin})
        ranked = ranked_differences([found])
        assert ranked["score"].isna().all()
        assert ranked["words"].str.contains("they read different texts").all()


class TestAtSelection:
    def heads(self, models: list[Model]) -> tuple[Result, pd.DataFrame]:
        found = result("attention-entropy", models)
        return found, at_selection(found, Selection(layer=1, head=2))

    def test_every_model_has_a_column_and_related_ones_a_difference(self) -> None:
        found, rows = self.heads(PAIR)
        table = found.tables["heads"]
        table = table[(table["layer"] == 1) & (table["head"] == 2) & (table["group"] == "rest")]
        first, second = table.set_index("model")["normalised"][[m.name for m in PAIR]]
        picked = rows[(rows["table"] == "heads") & (rows["quantity"] == "normalised")]
        row = picked[picked["where"].isin(["", "group rest"])].iloc[0]
        assert row["books-ln value"] == pytest.approx(first)
        assert row["books-lnfree value"] == pytest.approx(second)
        assert row["books-lnfree delta"] == pytest.approx(second - first)
        assert row["books-ln n"] == table["n"].iloc[0]
        assert str(rows["books-ln n"].dtype) == "Int64"

    def test_strangers_are_not_subtracted_and_it_says_why(self) -> None:
        _, rows = self.heads([FOUR[0], STRANGER])
        assert rows["stranger value"].notna().any()
        assert rows["stranger delta"].isna().all()
        assert rows["note"].str.contains("not known to be related to books-ln").all()

    def test_residual_units_of_a_live_model_are_not_subtracted(self) -> None:
        rows = at_selection(result("scale", PAIR), Selection(site="1.pre_mlp"))
        sizes = rows[rows["unit"] == "residual units"]
        shares = rows[rows["quantity"] == "spread"]
        assert sizes["books-lnfree delta"].isna().all()
        assert sizes["note"].str.contains("arbitrary").all()
        assert shares["books-lnfree delta"].notna().all()
        frozen = [dataclasses.replace(FOUR[3], name=name) for name in ("a", "b")]
        rows = at_selection(result("scale", frozen), Selection(site="1.pre_mlp"))
        assert rows[rows["quantity"] == "mean"]["b delta"].notna().all()

    def test_not_applicable_and_missing_rows_are_words(self) -> None:
        rows = at_selection(result("freeze-sweep", PAIR), Selection(site="final"))
        assert rows["books-lnfree value"].isna().all()
        assert rows["note"].str.contains("not applicable, every scale of this model").all()
        deep = Model("deep", ancestor="books-ln", layers=5, seed=2)
        rows = at_selection(result("scale", [FOUR[0], deep]), Selection(layer=4))
        assert rows["note"].str.contains("books-ln: has no such row").all()
        assert rows["deep value"].notna().any()

    def test_a_part_that_no_table_speaks_of_has_no_rows(self) -> None:
        for selection in (Selection(), Selection(neuron=3), Selection(layer=99)):
            rows = at_selection(result("scale", PAIR), selection)
            assert rows.empty
            assert "books-lnfree delta" in rows

    def test_rows_are_told_apart_by_as_few_words_as_it_takes(self) -> None:
        rows = at_selection(result("scale", FOUR[:1]), Selection(site="final"))
        assert set(rows["where"]) == {"group first", "group rest"}
        assert not rows.duplicated(["table", "where", "quantity"]).any()
        assert np.issubdtype(rows["books-ln value"].dtype, np.floating)
