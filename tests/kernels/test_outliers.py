"""``outliers``: the oracle, planted models and their clean twins, the rotated model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from normlens.capture.forward import observe
from normlens.capture.points import Point
from normlens.capture.protocol import Context, Finding, Observed
from normlens.capture.tree import plain_tree
from normlens.catalog import Need
from normlens.catalog.outliers import OutliersParameters
from normlens.kernels.outlier_inputs import linear_inputs, unseen_mlps
from normlens.kernels.outlier_massive import sequence_medians
from normlens.kernels.outlier_moments import feature_kurtosis
from normlens.kernels.outlier_views import centres_residual, rotation
from normlens.kernels.outliers import KERNEL
from normlens.models.blocks import block_modules
from normlens.models.lens import Role
from normlens.text.sequences import Batch
from tests import planted
from tests.kernels.harness import (
    VOCABULARY,
    context_of,
    lens_of,
    random_rows,
    sequences_of,
    stream,
)
from tests.oracles import outliers as oracle
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tiny_llama

TINY = {"layer_norm": tiny_gpt2, "rms_norm": tiny_llama, "fixed_scale": tiny_fixed_scale}
Seen = dict[str, list[np.ndarray]]


def found(model: PreTrainedModel, rows: list[list[int]], **parameters: Any) -> Finding:
    context = context_of(
        lens_of(model), OutliersParameters(**parameters), sequences_of(rows, extra=3)
    )
    return stream(KERNEL, context, Reducing(context))


@dataclass(frozen=True)
class Reducing:
    """What a pass hands to ``update``."""

    context: Context

    def __call__(self, batch: Batch) -> Observed:
        watch = Watching(self.context, batch)
        needs = frozenset({Need.RESIDUAL, Need.NORM_OUTPUT})
        return observe(plain_tree(self.context.lens), batch, needs, watch)


@dataclass(frozen=True)
class Watching:
    context: Context
    batch: Batch

    def __call__(self, point: Point, value: Any) -> Mapping[str, torch.Tensor]:
        return KERNEL.reduce(point, value, self.batch, self.context)


def activations(model: PreTrainedModel, rows: list[list[int]]) -> Seen:
    """Every block's input, the last one's output and every block norm's output, by name."""
    lens = lens_of(model)
    seen: Seen = {}
    handles = []

    def keep(name: str, value: Any) -> None:
        tensor = value[0] if isinstance(value, tuple) else value
        seen.setdefault(name, []).append(tensor[0].double().numpy())

    def watch(module: nn.Module, name: str, *, inputs: bool) -> None:
        if inputs:
            handle = module.register_forward_pre_hook(lambda _m, args: keep(name, args[0]))
        else:
            handle = module.register_forward_hook(lambda _m, _a, out: keep(name, out))
        handles.append(handle)

    blocks = block_modules(model)
    for i, block in enumerate(blocks):
        watch(block, f"residual.{i}", inputs=True)
    watch(blocks[-1], f"residual.{len(blocks)}", inputs=False)
    for site in lens.sites:
        if site.layer is not None:
            watch(lens.module(site), f"norm.{site.label}", inputs=False)
    with torch.inference_mode():
        for row in rows:
            model(input_ids=torch.tensor([row]), use_cache=False)
    for handle in handles:
        handle.remove()
    return seen


def group(sequences: list[np.ndarray], name: str) -> list[np.ndarray]:
    return [t for s in sequences for t in (s[:1] if name == "first" else s[1:])]


def layers_of(seen: Seen) -> list[list[list[np.ndarray]]]:
    names = [n for n in seen if n.startswith("norm.")]
    depth = 1 + max(int(n.split(".")[1]) for n in names)
    return [
        [group(seen[n], "rest") for n in names if n.split(".")[1] == str(layer)]
        for layer in range(depth)
    ]


def headline(finding: Finding) -> dict[str, float]:
    return {h.name: h.value for h in finding.headline}


@pytest.mark.parametrize("kind", TINY)
def test_equals_the_oracle(kind: str) -> None:
    rows = random_rows()
    model = TINY[kind](vocab_size=VOCABULARY)
    chosen = {
        "threshold": 2.0, "layer_share": 0.9, "position_share": 0.1,
        "massive_threshold": 1.0, "massive_ratio": 3.0, "top": 32,
    }  # fmt: skip
    finding = found(model, rows, **chosen)
    seen = activations(model, rows)
    for name in ("kurtosis", "layers"):
        assert (finding.tables[name]["status"] == "ok").all()
    for row in finding.tables["kurtosis"].itertuples():
        tokens = group(seen[str(row.point)], str(row.group))
        assert row.n == len(tokens)
        assert row.per_token == pytest.approx(np.mean([oracle.kurtosis(t) for t in tokens]), 1e-4)
        assert row.excess == pytest.approx(row.per_token - 3)
        assert row.per_feature == pytest.approx(oracle.feature_kurtosis(tokens), 1e-4)
    for row in finding.tables["layers"].itertuples():
        sequences = seen[str(row.point)]
        tokens = group(sequences, str(row.group))
        largest = max((v for t in tokens for v in t), key=abs)
        assert row.largest == pytest.approx(largest, rel=1e-4)
        assert row.median == pytest.approx(np.mean([oracle.median(s) for s in sequences]), rel=1e-4)
        assert row.mean_norm == pytest.approx(np.mean([np.linalg.norm(t) for t in tokens]), 1e-4)
        massive = [m for m in oracle.massive(sequences, 1.0, 3.0) if _in(m[1], str(row.group))]
        assert row.massive == len(massive) > 0
        of_point = finding.tables["massive"].query("point == @row.point and group == @row.group")
        assert dict(zip(of_point["dimension"], of_point["n"], strict=True)) == {
            d: sum(m[2] == d for m in massive) for d in {m[2] for m in massive}
        }
        for cell in of_point.itertuples():
            here = [m for m in massive if m[2] == cell.dimension]
            assert cell.largest == pytest.approx(max((m[3] for m in here), key=abs), rel=1e-4)
            assert cell.ratio == pytest.approx(max(m[4] for m in here), rel=1e-4)
    sizes: list[int] = []
    for criterion in ("absolute", "relative"):
        expected = oracle.outlier_dimensions(
            layers_of(seen), 2.0, 0.9, 0.1, relative=criterion == "relative"
        )
        table = finding.tables["features"]
        table = table[(table["criterion"] == criterion) & (table["group"] == "rest")]
        assert set(table.loc[table["outlier"], "dimension"]) == expected
        sizes.append(len(expected))
        name = "outlier_dimensions" + ("_relative" if criterion == "relative" else "")
        assert headline(finding)[name] == len(expected)
    assert any(0 < size < 32 for size in sizes)
    share = finding.tables["profile"].query("group == 'rest'")
    for row in share.itertuples():
        tokens = np.stack(group(seen[str(row.point)], "rest"))
        expected_share = (tokens[:, row.dimension] ** 2).sum() / (tokens**2).sum()
        assert row.mean_square_share == pytest.approx(expected_share, rel=1e-3)
    assert share.groupby("point")["mean_square_share"].sum().to_numpy() == pytest.approx(1)
    assert all(check.passed for check in finding.checks)


def _in(position: int, name: str) -> bool:
    return (position == 0) == (name == "first")


def test_per_feature_kurtosis_of_one_large_dimension_and_of_none() -> None:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randn(20_000, 768, generator=generator, dtype=torch.float64)
    assert float(feature_kurtosis(tokens.square().mean(0))) == pytest.approx(1, abs=1e-2)
    tokens[:, 17] *= 30
    # s is 900 once and 1 elsewhere: 768 (900**2 + 767) / (900 + 767)**2
    exact = 768 * (900**2 + 767) / (900 + 767) ** 2
    assert exact == pytest.approx(224, abs=0.5)
    assert float(feature_kurtosis(tokens.square().mean(0))) == pytest.approx(exact, rel=2e-2)


def test_the_median_is_the_lower_one_of_real_tokens() -> None:
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [90.0, 91.0]], [[5.0, 6.0], [7.0, 8.0], [9.0, 1.0]]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert sequence_medians(x, mask).tolist() == [2.0, 6.0]


@pytest.mark.parametrize("kind", planted.KINDS)
def test_a_planted_massive_activation_is_found_and_its_twin_is_clean(kind: str) -> None:
    rows = [[7, 1, 2, 3, 4], [1, 9, 7, 5], [7, 8, 7, 2, 6, 6]]
    plant = planted.massive(kind)
    finding = found(plant.model, rows)
    table = finding.tables["massive"]
    after = [f"residual.{i}" for i in range(planted.LAYER + 1, planted.LAYERS + 1)]
    for group_name, count in (("first", 2), ("rest", 2)):
        of_group = table[table["group"] == group_name]
        assert list(of_group["point"]) == after
        assert set(of_group["dimension"]) == {planted.ROW}
        assert set(of_group["n"]) == {count}
    spike = float(plant.embedding[planted.SPIKE, planted.ROW]) + planted.VALUE
    assert table["largest"].to_numpy() == pytest.approx(spike, rel=1e-5)
    ratios = []
    for row in (rows[0], rows[2]):
        x = plant.residual(row, planted.LAYERS)
        ratios.append(abs(spike) / oracle.median(x.numpy()))
    of_first = table[table["group"] == "first"]
    assert of_first["ratio"].to_numpy() == pytest.approx(max(ratios), rel=1e-5)
    places = finding.tables["massive_positions"].set_index("position")["n"]
    assert places.to_dict() == {0: 4, 2: 4}
    assert headline(finding)["massive_activations"] == 4 * len(after)
    layers = finding.tables["layers"].set_index(["point", "group"])
    assert layers.loc[(after[0], "rest"), "position"] == 2
    assert layers.loc[(after[0], "rest"), "dimension"] == planted.ROW
    norms = [float(plant.residual([t], planted.LAYERS).norm()) for t in (7, 1, 7)]
    assert layers.loc[(after[-1], "first"), "mean_norm"] == pytest.approx(np.mean(norms), rel=1e-5)

    clean = found(planted.massive(kind, clean=True).model, rows)
    assert headline(clean)["massive_activations"] == 0
    assert list(clean.tables["massive"]["n"]) == [0, 0]
    assert clean.tables["massive"]["dimension"].isna().all()
    assert headline(clean)["largest_ratio"] < 1000


@pytest.mark.parametrize("kind", planted.KINDS)
def test_a_planted_outlier_dimension_is_found_and_vanishes_when_rotated(kind: str) -> None:
    rows = random_rows(4)
    plant = planted.outlier_dimension(kind)
    finding = found(plant.model, rows, rotate=True)
    table = finding.tables["features"]
    native = table[(table["basis"] == "gain_free") & table["outlier"]]
    assert set(native["dimension"]) == {planted.ROW}
    assert set(zip(native["criterion"], native["group"], strict=True)) == {
        (c, g) for c in ("absolute", "relative") for g in ("first", "rest")
    }
    assert (native[["layer_share", "token_share"]] == 1).all(axis=None)
    numbers = headline(finding)
    assert not table[(table["basis"] == "rotated")]["outlier"].any()
    assert numbers["outlier_dimensions_rotated"] == 0
    top = finding.tables["dimensions"].query("group == 'rest'").iloc[0]
    assert top["dimension"] == planted.ROW
    assert top["persistence_depths"] == top["persistence_tokens"] == 1
    # One coordinate owns nearly all of the variance: both kurtoses are near the width.
    assert numbers["kurtosis_per_feature"] > 0.8 * planted.WIDTH
    assert numbers["kurtosis_per_token"] > 0.8 * planted.WIDTH
    assert numbers["kurtosis_per_token_rotated"] < 6
    assert numbers["kurtosis_per_feature_rotated"] < 6

    clean = found(planted.outlier_dimension(kind, clean=True).model, rows, rotate=True)
    gain_free = clean.tables["features"].query("basis == 'gain_free'")
    assert not gain_free["outlier"].any()
    assert headline(clean)["kurtosis_per_feature"] < 6


def test_the_rotation_gives_what_the_rotated_model_computes() -> None:
    rows, seed = random_rows(6), 3
    model = tiny_llama(vocab_size=VOCABULARY)
    q = rotation(32, seed)
    torch.testing.assert_close(q @ q.T, torch.eye(32, dtype=torch.float64))
    turned = oracle.rotated_llama(model, q)
    ids = torch.tensor([rows[0]])
    with torch.inference_mode():
        logits = model.double()(input_ids=ids, use_cache=False).logits
        # Llama's norm computes in float32 whatever the model's dtype.
        torch.testing.assert_close(turned(input_ids=ids).logits, logits, rtol=1e-4, atol=1e-5)
    model.float()
    chosen = {"threshold": 1.5, "layer_share": 0.9, "position_share": 0.1, "rotate_seed": seed}
    ours = found(model, rows, rotate=True, **chosen)
    theirs = found(turned, rows, **chosen)
    for name in ("kurtosis", "features"):
        rotated = ours.tables[name].query("basis == 'rotated'").reset_index(drop=True)
        native = theirs.tables[name].query("basis == 'native'").reset_index(drop=True)
        pd.testing.assert_frame_equal(
            rotated.drop(columns="basis"), native.drop(columns="basis"), rtol=1e-4
        )
    own = ours.tables["kurtosis"].query("basis == 'native'")
    assert abs(own["per_feature"].mean() / native_mean(theirs) - 1) > 1e-2
    assert {c.name for c in ours.checks} == {"sums_of_squares_agree", "rotation_keeps_norms"}
    assert all(check.passed for check in ours.checks)


def native_mean(finding: Finding) -> float:
    return float(finding.tables["kurtosis"].query("basis == 'native'")["per_feature"].mean())


def test_a_gain_of_zero_leaves_the_rotated_norm_out_in_words() -> None:
    model = tiny_llama(vocab_size=VOCABULARY)
    with torch.no_grad():
        model.model.layers[1].input_layernorm.weight[4] = 0.0
    finding = found(model, random_rows(), rotate=True)
    table = finding.tables["kurtosis"].set_index(["point", "basis", "group"])
    missing = table.loc[("norm.1.pre_attn", "rotated", "rest")]
    assert missing["status"] == "not_applicable"
    assert math.isnan(missing["per_token"])
    assert table.loc[("norm.1.pre_attn", "native", "rest"), "status"] == "ok"
    assert "gain of 1.pre_attn is too small" in " ".join(finding.warnings)


@dataclass(frozen=True)
class Overflowing:
    """One token of sequence 1 is infinite before the first block."""

    context: Context
    batch: Batch

    def __call__(self, point: Point, value: Any) -> Mapping[str, torch.Tensor]:
        if point.name == "residual.0" and 1 in self.batch.index:
            value = value.clone()
            value[self.batch.index.tolist().index(1), 2, 5] = math.inf
        return KERNEL.reduce(point, value, self.batch, self.context)


def test_overflow_is_a_status_and_not_an_average() -> None:
    lens = lens_of(tiny_gpt2(vocab_size=VOCABULARY))
    context = context_of(lens, OutliersParameters(), sequences_of([[1, 2, 4], [1, 3, 2], [5, 6]]))

    def look(batch: Batch) -> Observed:
        needs = frozenset({Need.RESIDUAL, Need.NORM_OUTPUT})
        return observe(plain_tree(lens), batch, needs, Overflowing(context, batch))

    finding = stream(KERNEL, context, look)
    for name in ("layers", "kurtosis"):
        table = finding.tables[name].set_index(["point", "group"])
        row = table.loc[("residual.0", "rest")]
        assert row["status"] == "overflow"
        assert row["n"] == 4
        assert table.loc[("residual.1", "rest"), "status"] == "ok"
        measures = table.select_dtypes("float64")
        assert np.isfinite(measures.to_numpy()).all()
    assert finding.warnings[0].startswith("some tokens are not finite")
    assert "residual.0 (1)" in finding.warnings[0]
    assert all(check.passed for check in finding.checks)


def test_a_model_without_pre_norms_is_judged_at_what_attention_reads() -> None:
    model = tiny_gpt2(vocab_size=VOCABULARY)
    lens = lens_of(model)
    bare = dataclasses.replace(
        lens, sites=tuple(s for s in lens.sites if s.role is not Role.PRE_ATTN)
    )
    inputs = linear_inputs(bare)
    assert [(i.point, i.feeds) for i in inputs] == [
        ("residual.0", "attention"), ("norm.0.pre_mlp", "mlp"),
        ("residual.1", "attention"), ("norm.1.pre_mlp", "mlp"),
    ]  # fmt: skip
    assert unseen_mlps(bare) == 0
    post = dataclasses.replace(lens, sites=tuple(s for s in lens.sites if s.role is Role.FINAL))
    assert unseen_mlps(post) == 2
    assert not centres_residual(post)
    context = context_of(post, OutliersParameters(threshold=2.0), sequences_of(random_rows()))
    finding = stream(KERNEL, context, Reducing(context))
    assert set(finding.tables["feature_layers"]["point"]) == {"residual.0", "residual.1"}
    assert "MLPs of 2 blocks" in finding.warnings[0]
