"""What every corpus analysis of the registry must keep, on every kind of tiny model.

Each analysis runs through the runner on one corpus and on variants of it that must give the
same numbers; a last variant must not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import PreTrainedModel

from normlens import catalog, runner
from normlens.catalog import Analysis
from normlens.hooks import hook_count
from normlens.models import Lens, open_model
from normlens.models.identity import weights_sha256
from normlens.results import STATUS, Result
from normlens.text.encoding import tokenizer_sha256
from normlens.text.sequences import Sequences
from tests.tiny import VOCABULARY, tiny_fixed_scale, tiny_gpt2, tiny_llama, tokenizer

pytestmark = pytest.mark.components

KINDS: dict[str, Callable[[], PreTrainedModel]] = {
    "layer_norm": tiny_gpt2,
    "rms_norm": tiny_llama,
    "fixed_scale": tiny_fixed_scale,
}
ANALYSES = [analysis.name for analysis in catalog.ALL if analysis.runs_on == "corpus"]
LENGTHS = (9, 14, 2, 11, 5, 7)
DOCUMENTS = (0, 1, 1, 2, 0, 3)
ORDER = (3, 0, 5, 1, 4, 2)
NOT_BY_N = {
    ("scale", "scale", "applied_scale"),  # the site's constant; none where the scale is live
    ("output", "calibration", "low"),  # edges of a bin
    ("output", "calibration", "high"),
}
"""Columns that do not depend on whether there are tokens."""

each_kind = pytest.mark.parametrize("kind", KINDS)
each_analysis = pytest.mark.parametrize("name", ANALYSES)


def corpus(*, pad_id: int = 0, extra: int = 0, unmasked: bool = False) -> Sequences:
    """Random sequences of unequal length, BOS (id 0) first."""
    generator = torch.Generator().manual_seed(11)
    lengths = torch.tensor(LENGTHS)
    ids = torch.full((len(LENGTHS), max(LENGTHS) + extra), pad_id)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = torch.randint(1, VOCABULARY, (length,), generator=generator)
    ids[:, 0] = 0
    if unmasked:
        lengths = torch.full_like(lengths, ids.shape[1])
    documents = tuple(f"book {i}" for i in range(max(DOCUMENTS) + 1))
    digest = tokenizer_sha256(tokenizer())
    return Sequences(
        ids, lengths, torch.tensor(DOCUMENTS), documents, "random", "prepend", pad_id, digest
    )


def first_tokens() -> Sequences:
    """A corpus of single tokens: nothing is predicted and nothing comes after the first."""
    whole = corpus()
    ones = torch.ones_like(whole.lengths)
    return dataclasses.replace(whole, ids=whole.ids[:, :1], lengths=ones, name="firsts")


VARIANTS: dict[str, tuple[Callable[[], Sequences], int]] = {
    "whole": (corpus, 16),
    "one by one": (corpus, 1),
    "shuffled": (lambda: corpus().select(torch.tensor(ORDER)), 4),
    "padded": (lambda: corpus(pad_id=77, extra=6), 4),
    "padding taken for text": (lambda: corpus(unmasked=True), 16),
    "first tokens": (first_tokens, 16),
}


@cache
def lens_of(kind: str) -> Lens:
    return open_model(KINDS[kind](), tokenizer=tokenizer(), name=kind)


@cache
def reference() -> Lens:
    """What analyses that compare set every kind against."""
    return open_model(tiny_gpt2(seed=9), tokenizer=tokenizer(), name="reference")


@cache
def result(name: str, kind: str, variant: str) -> Result:
    sequences, size = VARIANTS[variant]
    (found,) = runner.run(
        [name],
        lens_of(kind),
        sequences(),
        parameters={name: wanted(name)},
        batch_size=size,
        reference=reference(),
    )
    return found


def wanted(name: str) -> dict[str, bool | int]:
    """Rows per token where the analysis offers them; windows that fit the sequences."""
    offered = {"per_token": True, "sink_positions": 4}
    fields = catalog.get(name).parameters.__dataclass_fields__
    return {key: value for key, value in offered.items() if key in fields}


def keys(analysis: Analysis, table: str) -> list[str]:
    """Columns that name a row."""
    (schema,) = [t for t in analysis.tables if t.name == table]
    measured = ("float64",)
    return [c.name for c in schema.columns if c.dtype not in measured and c.name != "n"]


def assert_same(analysis: Analysis, one: Result, other: Result, order: tuple[int, ...]) -> None:
    """``other`` holds the numbers of ``one``; its sequence ``i`` is sequence ``order[i]``."""
    assert one.not_applicable == other.not_applicable
    for schema in analysis.tables:
        left, right = one.tables[schema.name], other.tables[schema.name].copy()
        if "sequence" in right:
            right["sequence"] = [order[i] for i in right["sequence"]]
        named = keys(analysis, schema.name)
        left = left.sort_values(named, kind="stable", ignore_index=True)
        right = right.sort_values(named, kind="stable", ignore_index=True)
        assert len(left) == len(right)
        for column in left:
            if left[column].dtype != "float64":
                pd.testing.assert_series_equal(left[column], right[column])
                continue
            # A value at the edge of a log bin may fall into the next one, 0.46 % away.
            binned = column.startswith("q") or schema.name == "quantiles"
            np.testing.assert_allclose(
                right[column].to_numpy(),
                left[column].to_numpy(),
                rtol=6e-3 if binned else 1e-3,
                atol=1e-4,
                err_msg=f"{schema.name}.{column}",
            )


@each_kind
@each_analysis
def test_tables_are_as_declared(name: str, kind: str) -> None:
    found = result(name, kind, "whole")
    analysis = catalog.get(name)
    assert found.models == (kind,)
    assert set(found.tables) == {table.name for table in analysis.tables} | {"replicates"}
    for schema in analysis.tables:
        table = found.tables[schema.name]
        assert list(table.columns) == ["model", *(c.name for c in schema.columns), "status"]
        for column in schema.columns:
            assert table[column.name].dtype == pd.Series(dtype=column.dtype).dtype, column.name
        assert set(table["model"]) <= {kind}
        assert set(table["status"]) <= set(STATUS)
    if found.not_applicable:
        assert kind in found.not_applicable[kind]
        assert all(table.empty for table in found.tables.values())
    else:
        assert all(len(found.tables[table.name]) for table in analysis.tables)
        assert found.headline[kind]
        assert found.passed


@each_kind
def test_something_applies_and_freezing_needs_a_live_scale(kind: str) -> None:
    for name in ANALYSES:
        reason = result(name, kind, "whole").not_applicable
        assert bool(reason) == (name == "freeze-sweep" and kind == "fixed_scale"), name


@each_kind
@each_analysis
@pytest.mark.parametrize("variant", ["one by one", "shuffled", "padded"])
def test_batches_order_and_padding_do_not_matter(name: str, kind: str, variant: str) -> None:
    order = ORDER if variant == "shuffled" else tuple(range(len(LENGTHS)))
    whole, other = result(name, kind, "whole"), result(name, kind, variant)
    assert_same(catalog.get(name), whole, other, order)


@each_kind
@each_analysis
def test_the_mask_matters(name: str, kind: str) -> None:
    whole, unmasked = result(name, kind, "whole"), result(name, kind, "padding taken for text")
    if whole.not_applicable:
        pytest.skip(f"{name} does not apply to {kind}")
    with pytest.raises(AssertionError):
        assert_same(catalog.get(name), whole, unmasked, tuple(range(len(LENGTHS))))


@each_kind
@each_analysis
@pytest.mark.parametrize("variant", ["whole", "first tokens"])
def test_a_measure_is_nan_iff_no_token_is_behind_it(name: str, kind: str, variant: str) -> None:
    found = result(name, kind, variant)
    for table, frame in found.tables.items():
        if "n" not in frame:
            continue
        without = frame["n"] == 0
        assert (frame["status"].isin(("no_data", "not_applicable")) == without).all()
        for column in frame.select_dtypes("float64"):
            if (name, table, column) not in NOT_BY_N:
                assert (frame[column].isna() == without).all(), (table, column)
    for headline in found.headline.get(kind, ()):
        assert math.isnan(headline.value) == (headline.n == 0), headline.name
        assert not headline.low > headline.high
    if variant == "first tokens" and not found.not_applicable:
        assert any((frame["n"] == 0).any() for frame in found.tables.values() if "n" in frame)


@each_kind
def test_together_as_alone(kind: str) -> None:
    parameters = {name: wanted(name) for name in ANALYSES}
    found = runner.run(
        ANALYSES, lens_of(kind), corpus(), parameters=parameters, reference=reference()
    )
    for name, together in zip(ANALYSES, found, strict=True):
        alone = result(name, kind, "whole")
        assert together.analysis == name
        assert_same(catalog.get(name), alone, together, tuple(range(len(LENGTHS))))


@each_kind
@each_analysis
def test_the_model_is_left_as_it_was(name: str, kind: str) -> None:
    lens = lens_of(kind)
    result(name, kind, "whole")
    assert hook_count(lens.model) == 0
    assert weights_sha256(lens.model) == lens.identity.weights_sha256
    assert not lens.model.training
