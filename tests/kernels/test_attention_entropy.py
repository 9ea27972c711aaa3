"""``attention-entropy``: closed forms, the oracle, sinks, NaN, encoders, failing checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from normlens.capture.attention import attention_points, chunks, joined
from normlens.capture.attention_source import Fused
from normlens.capture.forward import observe
from normlens.capture.protocol import Context, Finding, Observed
from normlens.capture.tree import plain_tree
from normlens.catalog import Need
from normlens.catalog.attention_entropy import AttentionEntropyParameters
from normlens.kernels.attention_entropy import KERNEL
from normlens.kernels.attention_quarters import QUARTERS, quarter
from normlens.text.sequences import Batch
from tests import planted_attention
from tests.architectures import ARCHITECTURES
from tests.kernels.harness import (
    VOCABULARY,
    bootstrap,
    context_of,
    cut,
    lens_of,
    random_rows,
    sequences_of,
    stream,
)
from tests.oracles import attention_entropy as oracle
from tests.planted_attention import planted_head
from tests.tiny import tiny_gpt2, tiny_llama

MEASURES = [
    "n", "normalised", "normalised_low", "normalised_high", "entropy", "ceiling",
    "entropy_all", "ceiling_all", "first_mass", "sink_entropy", "rest_entropy",
]  # fmt: skip
ROWS, DOCUMENTS = random_rows(lengths=(9, 4, 12, 7, 2)), [0, 0, 1, 2, 2]
POSITIONS, THRESHOLD = 5, 0.35
LONG = 64

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2": tiny_gpt2,
    "llama": tiny_llama,
    "mistral": ARCHITECTURES["mistral"],
    "gemma2": ARCHITECTURES["gemma2"],
    "bert-encoder": ARCHITECTURES["bert-encoder"],
}
WINDOW = {"mistral": (6, 6), "gemma2": (6, 99)}


def found(
    model: PreTrainedModel,
    rows: list[list[int]],
    documents: list[int] | None = None,
    *,
    positions: int = POSITIONS,
    threshold: float = THRESHOLD,
) -> Finding:
    """One pass over a padded corpus, batches of two."""
    parameters = AttentionEntropyParameters(positions, threshold)
    context = context_of(lens_of(model), parameters, sequences_of(rows, documents, extra=2))
    tree = plain_tree(context.lens)

    def look(batch: Batch) -> Observed:
        return observe(
            tree,
            batch,
            frozenset({Need.ATTENTION}),
            lambda point, chunk: KERNEL.reduce(point, chunk, batch, context),
        )

    return stream(KERNEL, context, look)


@torch.inference_mode()
def eager(model: PreTrainedModel, rows: list[list[int]]) -> list[list[np.ndarray]]:
    """``[sequence][layer]`` attention weights ``[head query key]`` without padding."""
    model.set_attn_implementation("eager")
    return [
        [
            weights[0].double().numpy()
            for weights in model(
                input_ids=torch.tensor([row]), output_attentions=True, use_cache=False
            ).attentions
        ]
        for row in rows
    ]


def visible(name: str, layer: int, length: int) -> np.ndarray:
    if name == "bert-encoder":
        return np.ones((length, length), dtype=bool)
    distance = np.arange(length)[:, None] - np.arange(length)[None]
    return (distance >= 0) & (distance < WINDOW.get(name, (99, 99))[layer])


def by_head(table: pd.DataFrame, group: str | None = "rest") -> pd.DataFrame:
    if group is not None:
        table = table[table["group"] == group]
    return table.set_index(["layer", "head"])


def numbers(finding: Finding) -> dict[str, Any]:
    return {h.name: h for h in finding.headline}


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_oracle(name: str) -> None:
    finding = found(MODELS[name](), ROWS, DOCUMENTS)
    replicates = bootstrap(sequences_of(ROWS, DOCUMENTS))[:, DOCUMENTS].numpy()
    attention = eager(MODELS[name](), ROWS)
    groups = ("rest", "first") if name == "bert-encoder" else ("rest",)
    assert set(finding.tables["heads"]["group"]) == set(groups)
    sinks = by_head(finding.tables["sinks"], None)
    means = []
    for layer in range(2):
        shown = [visible(name, layer, len(row)) for row in ROWS]
        for head in range(4):
            weights = [layers[layer][head] for layers in attention]
            for group in groups:
                row = by_head(finding.tables["heads"], group).loc[(layer, head)]
                expected = pd.Series(oracle.head(weights, shown, replicates, group))
                got = row[MEASURES].astype(float)
                pd.testing.assert_series_equal(
                    got, expected[MEASURES], rtol=1e-5, atol=2e-6, check_names=False
                )
                assert row["quarter"] == QUARTERS[int(4 * expected["normalised"])]
                assert row["nan"] == 0
                if group == "rest":
                    means.append(expected["normalised"])
            if name != "bert-encoder":
                expected_sink = oracle.sink(weights, POSITIONS, THRESHOLD)
                for key, value in expected_sink.items():
                    assert sinks.loc[(layer, head), key] == pytest.approx(value, rel=1e-5), key
    assert numbers(finding)["normalised_entropy"].value == pytest.approx(np.mean(means), rel=1e-5)
    assert all(check.passed for check in finding.checks)
    bins = finding.tables["bins"].query("mode == 'normalised'")
    shares = np.bincount([int(4 * m) for m in means], minlength=4) / len(means)
    assert bins["share"].to_numpy() == pytest.approx(shares)


def test_logits_and_vectors_equal_the_oracle() -> None:
    model = tiny_gpt2(vocab_size=VOCABULARY, scale_attn_by_inverse_layer_idx=True)
    fused: list[list[Tensor]] = [[], []]
    for layer, block in enumerate(model.transformer.h):
        block.attn.c_attn.register_forward_hook(
            lambda _module, _args, output, layer=layer: fused[layer].append(output[0].double())
        )
    with torch.inference_mode():
        for row in ROWS:
            model(input_ids=torch.tensor([row]), use_cache=False)
    finding = found(tiny_gpt2(vocab_size=VOCABULARY, scale_attn_by_inverse_layer_idx=True), ROWS)
    for layer in range(2):
        for head in range(4):
            parts = [x.unflatten(1, (3, 4, 8))[:, :, head].numpy() for x in fused[layer]]
            queries, keys = [x[:, 0] for x in parts], [x[:, 1] for x in parts]
            scores = [q @ k.T / 8**0.5 / (layer + 1) for q, k in zip(queries, keys, strict=True)]
            for table, expected in (
                ("logits", oracle.logits(scores)),
                ("vectors", oracle.vectors(queries, keys)),
            ):
                row = by_head(finding.tables[table]).loc[(layer, head)]
                for key, value in expected.items():
                    assert row[key] == pytest.approx(value, rel=1e-5, abs=1e-6), (table, key)


def test_cosines_without_a_causal_kernel_are_those_of_the_causal_one() -> None:
    context = context_of(lens_of(tiny_gpt2()), AttentionEntropyParameters(), sequences_of(ROWS))
    (batch,) = cut(context.sequences, len(ROWS))
    query, key, value = torch.randn(3, 5, 4, 12, 8, generator=_seed(2)).unbind(0)
    causal = torch.ones(12, 12, dtype=torch.bool).tril()[None, None].expand(5, 1, 12, 12)
    one, other = (
        KERNEL.reduce(attention_points(2)[0], chunk, batch, context)["sums"]
        for mask in ({"is_causal": True}, {"attn_mask": causal})
        for line in chunks(0, _source(query, key, value, **mask))
        for chunk in line
    )
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_uniform_attention_is_at_the_ceiling() -> None:
    finding = found(
        planted_head(0.0), random_rows(lengths=(LONG, LONG)), positions=LONG, threshold=0.3
    )
    heads = finding.tables["heads"]
    ceiling = math.lgamma(LONG + 1)
    assert heads["entropy_all"].to_numpy() == pytest.approx(ceiling / LONG, rel=1e-6)
    assert heads["ceiling_all"].to_numpy() == pytest.approx(ceiling / LONG, rel=1e-12)
    assert heads["entropy"].to_numpy() == pytest.approx(ceiling / (LONG - 1), rel=1e-6)
    assert heads["normalised"].to_numpy() == pytest.approx(1, rel=1e-6)
    assert (heads["quarter"] == "75-100 %").all()
    assert (heads["reproduction_quarter"] == "75-100 %").all()
    sinks = finding.tables["sinks"]
    harmonic = sum(1 / i for i in range(1, LONG + 1)) / LONG
    assert sinks["mass"].to_numpy() == pytest.approx(harmonic, rel=1e-6)
    assert harmonic == pytest.approx(0.074, abs=5e-4)
    assert (sinks["rate"] == 0).all()
    assert numbers(finding)["sink_rate"].value == 0
    assert numbers(finding)["overloaded"].value == 1
    assert numbers(finding)["collapsed"].value == 0
    assert all(check.passed for check in finding.checks)
    vectors = by_head(finding.tables["vectors"])[["query_norm", "key_norm", "cosine"]]
    assert (vectors.drop(index=(1, 2)) == 0).all(axis=None)


@pytest.mark.parametrize("gap", [0.0, 1.0, 4.0])
def test_a_planted_sink_head_is_found_and_its_clean_twin_is_clean(gap: float) -> None:
    rows = [[0, *row[1:]] for row in random_rows(lengths=(LONG, LONG - 1, LONG))]
    rows = [[row[0], *(max(1, t) for t in row[1:])] for row in rows]
    finding = found(planted_head(gap), rows, positions=LONG, threshold=0.3)
    sinks = by_head(finding.tables["sinks"], None)
    mass = np.mean([planted_attention.first_mass(gap, n) for n in range(1, LONG + 1)])
    assert sinks.loc[(1, 2), "mass"] == pytest.approx(mass, rel=1e-5)
    assert sinks.loc[(1, 2), "n"] == 2
    assert (sinks["left_out"] == 1).all()
    above = sinks["rate"] == 1
    assert list(sinks.index[above]) == ([(1, 2)] if gap == 4 else [])
    assert (sinks.loc[~above, "rate"] == 0).all()
    assert numbers(finding)["sink_rate"].value == pytest.approx(above.sum() / 8)
    assert numbers(finding)["sink_rate"].n == 2 * 8
    row = by_head(finding.tables["heads"]).loc[(1, 2)]
    keys = [n for length in map(len, rows) for n in range(2, length + 1)]
    entropies = [planted_attention.entropy(gap, n) for n in keys]
    first = [planted_attention.first_mass(gap, n) for n in keys]
    shares = [h / math.log(n) for h, n in zip(entropies, keys, strict=True)]
    assert row["entropy"] == pytest.approx(np.mean(entropies), rel=1e-5)
    assert row["normalised"] == pytest.approx(np.mean(shares), rel=1e-5)
    others = [(1 - a) * math.log(n - 1) for a, n in zip(first, keys, strict=True)]
    assert row["rest_entropy"] == pytest.approx(np.mean(others), rel=1e-4, abs=1e-6)
    uniform = by_head(finding.tables["heads"]).drop(index=(1, 2))
    assert uniform["normalised"].to_numpy() == pytest.approx(1, rel=1e-6)


def test_attention_on_one_key_has_no_entropy_and_no_nan() -> None:
    rows = [[0, *([1] * 30)], [0, *([5] * 40)]]
    finding = found(planted_head(300.0), rows, positions=8, threshold=0.9)
    row = by_head(finding.tables["heads"]).loc[(1, 2)]
    assert row["entropy"] == 0
    assert row["sink_entropy"] == 0
    assert row["first_mass"] == 1
    assert row["quarter"] == "0-25 %"
    assert (finding.tables["heads"]["nan"] == 0).all()
    assert numbers(finding)["collapsed"].value == pytest.approx(1 / 8)
    assert not finding.warnings


def invented(
    context: Context, batch: Batch, change: Callable[[Tensor, Tensor, Tensor], None]
) -> Observed:
    """Random queries, keys and values in both layers, changed in place in layer 1."""
    reduced = {}
    shape = (*batch.ids.shape, 8)
    for point in attention_points(2):
        assert point.layer is not None
        query, key, value = (
            torch.randn(shape[0], 4, *shape[1:], generator=_seed(i)) for i in range(3)
        )
        source = _source(query, key, value, is_causal=True)
        if point.layer == 1:
            change(query, key, value)
        reduced[point.name] = joined(
            [KERNEL.reduce(point, chunk, batch, context) for chunk in line]
            for line in chunks(point.layer, source)
        )
    return Observed(reduced=reduced)


def _source(query: Tensor, key: Tensor, value: Tensor, **arguments: Any) -> Fused:
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, **arguments)
    return Fused.of_call(output, query, key, value, **arguments)


def _seed(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def streamed(change: Callable[[Tensor, Tensor, Tensor], None]) -> Finding:
    context = context_of(
        lens_of(tiny_gpt2()), AttentionEntropyParameters(4), sequences_of(ROWS, extra=1)
    )
    return stream(KERNEL, context, lambda batch: invented(context, batch, change))


def _nothing(query: Tensor, key: Tensor, value: Tensor) -> None:
    pass


def _nan(query: Tensor, key: Tensor, value: Tensor) -> None:
    query[0, 2, 1] = math.nan
    query[-1, 2, -1] = math.nan  # padding, but in the last batch, where it is the query above


def _other_values(query: Tensor, key: Tensor, value: Tensor) -> None:
    value *= 1.01


def test_real_nan_is_counted_and_left_out() -> None:
    clean, finding = streamed(_nothing), streamed(_nan)
    before, after = (by_head(f.tables["heads"]) for f in (clean, finding))
    lost = after["nan"][after["nan"] > 0]
    assert lost.to_dict() == {(1, 2): 3}  # one in each batch
    assert after.loc[(1, 2), "n"] == before.loc[(1, 2), "n"] - 3
    assert after[MEASURES].notna().all(axis=None)
    kept = [key for key in after.index if key != (1, 2)]
    pd.testing.assert_frame_equal(after.loc[kept], before.loc[kept])
    assert "L1.H2 (3)" in finding.warnings[0]
    assert not clean.warnings


def test_the_check_fails_where_attention_is_not_what_the_model_computed() -> None:
    assert all(check.passed for check in streamed(_nothing).checks)
    failed = {check.name: check.passed for check in streamed(_other_values).checks}
    assert failed == {"attention_entropy_bounds": True, "attention_recomputed": False}


def test_sequences_too_short_for_the_sink_rate_are_left_out_and_counted() -> None:
    finding = found(tiny_gpt2(), ROWS, positions=10)
    assert (finding.tables["sinks"]["n"] == 1).all()
    assert (finding.tables["sinks"]["left_out"] == 4).all()
    none = found(tiny_gpt2(), ROWS, positions=13)
    assert (none.tables["sinks"]["n"] == 0).all()
    assert none.tables["sinks"][["rate", "mass"]].isna().all(axis=None)
    assert numbers(none)["sink_rate"].n == 0
    assert math.isnan(numbers(none)["sink_rate"].value)


def test_encoders_have_no_sink_rate_and_a_first_query_with_entropy() -> None:
    finding = found(ARCHITECTURES["bert"](), ROWS, DOCUMENTS)
    assert (finding.tables["sinks"]["status"] == "not_applicable").all()
    assert numbers(finding)["sink_rate"].n == 0
    first = by_head(finding.tables["heads"], "first")
    assert (first["n"] == len(ROWS)).all()
    assert first["entropy"].min() > 0


def test_models_that_write_attention_out_have_capped_logits_and_no_vectors() -> None:
    finding = found(ARCHITECTURES["gemma2"](), ROWS)
    assert finding.tables["logits"]["maximum"].max() <= 2.0  # its soft cap
    vectors = finding.tables["vectors"]
    assert (vectors["status"] == "not_applicable").all()
    assert (vectors["n"] == 0).all()


def test_bins_are_of_the_models_own_largest_entropy() -> None:
    finding = found(tiny_gpt2(), ROWS)
    heads = finding.tables["heads"]
    largest = heads["entropy_all"].max()
    expected = [quarter(value / largest) for value in heads["entropy_all"]]
    assert list(heads["reproduction_quarter"]) == expected
    bins = finding.tables["bins"].set_index(["mode", "quarter"])["share"]
    for name in QUARTERS:
        assert bins["reproduction", name] == pytest.approx(expected.count(name) / 8)
    assert bins.groupby("mode").sum().to_numpy() == pytest.approx(1)


@pytest.mark.parametrize(
    ("share", "name"), [(0.0, 0), (0.2499, 0), (0.25, 1), (0.75, 3), (1.0, 3), (1.0000001, 3)]
)
def test_quarters_hold_their_lower_end(share: float, name: int) -> None:
    assert quarter(share) == QUARTERS[name]
    assert quarter(math.nan) == ""


def test_no_query_with_two_keys_is_no_data() -> None:
    finding = found(tiny_gpt2(), [[1], [2]])
    heads = finding.tables["heads"]
    assert (heads["n"] == 0).all()
    assert heads[MEASURES[1:]].isna().all(axis=None)
    assert (heads["quarter"] == "").all()
    assert finding.tables["bins"]["share"].isna().all()
    assert all(math.isnan(h.value) and h.n == 0 for h in finding.headline)
    assert all(check.passed for check in finding.checks)
