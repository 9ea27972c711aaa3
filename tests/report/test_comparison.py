"""Headline tables, paired differences and the traps of comparing."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from normlens.comparison import (
    Relation,
    caveats,
    compare_headlines,
    difference,
    headline_rows,
    relations,
    side_by_side,
)
from normlens.results import Result
from tests.synthetic_results import FOUR, Model, of_model, result, results


def changed(found: Result, model: str, **facts: Any) -> Result:
    """The result with a model's provenance changed."""
    provenance = {**found.provenance, model: {**found.provenance[model], **facts}}
    return dataclasses.replace(found, provenance=provenance)


def names(found: tuple[Any, ...], *, serious: bool = True) -> set[str]:
    return {caveat.name for caveat in found if caveat.serious == serious}


class TestHeadlines:
    def test_one_row_per_number_with_values_and_differences(self) -> None:
        table = compare_headlines(results()).set_index(["analysis", "headline"])
        loss = table.loc[("output", "cross_entropy")]
        assert loss["books-ln value"] == 4.02
        assert loss["books-lnfree delta"] == pytest.approx(0.011)
        assert loss["books-lnfree delta low"] < 0.011 < loss["books-lnfree delta high"]
        assert "books-ln delta" not in table.columns

    def test_a_model_without_the_number_has_nan_and_n_0(self) -> None:
        table = compare_headlines(results()).set_index(["analysis", "headline"])
        frozen = table.loc[("freeze-sweep", "all_frozen")]
        assert math.isnan(frozen["books-lnfree value"])
        assert frozen["books-lnfree n"] == 0

    def test_separate_results_are_put_side_by_side_in_registry_order(self) -> None:
        separate = [of_model(a, m) for m in FOUR[:2] for a in ("scale", "output")]
        joined = side_by_side(separate)
        assert [r.analysis for r in joined] == ["output", "scale"]
        assert joined[0].models == ("books-ln", "books-control")
        assert next(row.name for row in headline_rows(separate)) == "cross_entropy"


class TestDifference:
    def test_pairing_is_by_replicate(self) -> None:
        found = result("output", FOUR[:2])
        paired = difference(found, "cross_entropy", "books-control", "books-ln")
        table = found.tables["replicates"]
        mine = table.query("model == 'books-control'")["value"].to_numpy()
        base = table.query("model == 'books-ln'")["value"].to_numpy()
        assert paired is not None
        assert [paired.low, paired.high] == pytest.approx(np.quantile(mine - base, [0.025, 0.975]))
        rng = np.random.default_rng(0)
        unpaired = np.quantile(rng.permutation(mine) - base, [0.025, 0.975])
        assert paired.high - paired.low < 0.2 * (unpaired[1] - unpaired[0])

    def test_shuffled_rows_change_nothing(self) -> None:
        found = result("output", FOUR[:2])
        shuffled = found.tables["replicates"].sample(frac=1, random_state=1)
        again = dataclasses.replace(found, tables={**found.tables, "replicates": shuffled})
        arguments = ("cross_entropy", "books-control", "books-ln")
        assert difference(again, *arguments) == difference(found, *arguments)

    def test_no_replicates_no_interval(self) -> None:
        found = difference(result("output", FOUR[:2]), "ece", "books-control", "books-ln")
        assert found is not None
        assert found.value == pytest.approx(0.004)
        assert math.isnan(found.low)
        assert not found.clear

    @pytest.mark.parametrize(
        ("fact", "reason"),
        [
            ({"tokenizer_sha256": "other"}, "tokenizers differ"),
            ({"corpus_sha256": "other"}, "different texts"),
            ({"bos": "none"}, "BOS"),
            ({"tokens": 3}, "numbers of tokens"),
        ],
    )
    def test_other_tokens_no_difference(self, fact: dict[str, Any], reason: str) -> None:
        found = changed(result("output", FOUR[:2]), "books-control", **fact)
        delta = difference(found, "cross_entropy", "books-control", "books-ln")
        assert delta is not None
        assert math.isnan(delta.value)
        assert reason in delta.reason

    def test_other_bootstrap_seed_no_interval(self) -> None:
        found = changed(result("output", FOUR[:2]), "books-control", seed=7)
        delta = difference(found, "cross_entropy", "books-control", "books-ln")
        assert delta is not None
        assert math.isfinite(delta.value)
        assert math.isnan(delta.low)

    def test_other_targets_of_a_prompt_no_difference(self) -> None:
        found = result("prompt-attribution", FOUR[:2])
        same = difference(found, "probability", "books-control", "books-ln")
        assert same is not None and math.isfinite(same.value)
        (number,) = found.headline["books-control"]
        other = (dataclasses.replace(number, doc="of another target"),)
        found = dataclasses.replace(found, headline={**found.headline, "books-control": other})
        delta = difference(found, "probability", "books-control", "books-ln")
        assert delta is not None
        assert delta.reason == "their targets differ"

    def test_clear_means_the_interval_leaves_out_zero(self) -> None:
        found = result("output")
        free = difference(found, "cross_entropy", "books-lnfree", "books-ln")
        control = difference(found, "cross_entropy", "books-control", "books-ln")
        assert free is not None and free.clear
        assert control is not None and not control.clear


class TestTraps:
    def test_a_lineage_with_both_controls_has_no_serious_caveat(self) -> None:
        found = caveats(results())
        assert names(found) == set()
        assert names(found, serious=False) == {
            "training variance",
            "scale-free",
            "residual gauge",
        }

    def test_missing_controls(self) -> None:
        without = caveats([result("output", [FOUR[0], FOUR[3]])])
        assert "controls" in names(without)
        assert "without a control" in next(c.text for c in without if c.name == "controls")
        one = caveats([result("output", [FOUR[0], FOUR[1], FOUR[3]])])
        assert "one control, books-control" in next(c.text for c in one if c.name == "controls")

    def test_unrelated_models(self) -> None:
        found = caveats([result("output", [Model("a"), Model("b", seed=1)])])
        assert "lineage" in names(found)

    def test_relations_through_a_third_model_are_enough(self) -> None:
        verified = [Relation("books-control", "books-ln", 0.9, True)]
        verified += [Relation("books-aux", "books-ln", 0.9, True)]
        found = result("output", FOUR[:3])
        assert "lineage" not in names(caveats([found], verified))
        assert "lineage" in names(caveats([found], verified[:1]))
        refuted = [verified[0], dataclasses.replace(verified[1], related=False)]
        assert "lineage" in names(caveats([found], refuted))

    @pytest.mark.parametrize(
        ("fact", "trap"),
        [
            ({"tokenizer_sha256": "x"}, "same tokens"),
            ({"dtype": "bfloat16"}, "precision"),
            ({"quantised_from": "Q4_K_M"}, "quantised origin"),
            ({"edits": ["fixed the scale of 0.pre_mlp"]}, "edits"),
            ({"sites": [{"label": "0.pre_mlp", "verified": False}]}, "unverified sites"),
        ],
    )
    def test_each_fact_raises_its_caveat(self, fact: dict[str, Any], trap: str) -> None:
        found = changed(result("output", FOUR[:3]), "books-aux", **fact)
        assert names(caveats([found])) == {trap}

    def test_one_model_is_not_a_comparison(self) -> None:
        found = caveats([result("output", FOUR[:1])])
        assert {caveat.name for caveat in found} == {"training variance"}

    def test_relations_are_read_from_weight_cosines(self) -> None:
        cosines = {"b": 0.9, "c": 0.02, "d": math.nan}
        known = {m: {"weight_cosine_to_reference": c} for m, c in cosines.items()}
        found = relations(["a", "b", "c", "d", "e"], known)
        assert [(r.model, r.other, r.related) for r in found] == [
            ("b", "a", True),
            ("c", "a", False),
            ("d", "a", False),
        ]
