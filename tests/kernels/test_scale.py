"""``scale``: closed forms, the oracle, invariances, overflow."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from normlens.capture.protocol import Context, Observed
from normlens.catalog import Need
from normlens.catalog.scale import ScaleParameters
from normlens.errors import NotApplicable
from normlens.hooks import hook_count
from normlens.kernels.scale import KERNEL
from normlens.kernels.token_scale import constant_scale, token_scale
from normlens.models.lens import Lens
from normlens.norms.spec import NormKind, NormSpec
from normlens.text.sequences import Batch
from tests.kernels.harness import (
    VOCABULARY,
    bootstrap,
    context_of,
    lens_of,
    observing,
    random_rows,
    sequences_of,
    stream,
)
from tests.oracles import scale as oracle
from tests.tiny import EPS, tiny_fixed_scale, tiny_gpt2, tiny_llama

MEASURES = [
    "n", "mean", "sd", "spread", "spread_low", "spread_high",
    "minimum", "maximum", "ones_share",
]  # fmt: skip
QUANTILES = ["q05", "q50", "q95"]
TINY = {"layer_norm": tiny_gpt2, "rms_norm": tiny_llama, "fixed_scale": tiny_fixed_scale}


@pytest.fixture(scope="module")
def lens() -> Lens:
    return lens_of(tiny_gpt2(vocab_size=VOCABULARY))


def invented(context: Context, mean: torch.Tensor, variance: torch.Tensor) -> Observed:
    """The same moments at every site."""
    moments = torch.stack([mean, variance])
    return Observed({site.label: moments for site in context.lens.sites})


def by_row(table: pd.DataFrame) -> pd.DataFrame:
    return table.set_index(["site", "group"])


def norm_inputs(model: PreTrainedModel, path: str, rows: list[list[int]]) -> list[np.ndarray]:
    seen: list[np.ndarray] = []
    handle = model.get_submodule(path).register_forward_pre_hook(
        lambda _module, args: seen.append(args[0][0].double().numpy())
    )
    with torch.inference_mode():
        for row in rows:
            model(input_ids=torch.tensor([row]), use_cache=False)
    handle.remove()
    return seen


@pytest.mark.parametrize("kind", TINY)
def test_equals_the_oracle(kind: str) -> None:
    rows, documents = random_rows(), [0, 0, 1, 2, 2]
    sequences = sequences_of(rows, documents, extra=3)
    model = TINY[kind](vocab_size=VOCABULARY)
    lens = lens_of(model)
    context = context_of(lens, ScaleParameters(), sequences)
    table = by_row(stream(KERNEL, context, observing(lens, Need.NORM_MOMENTS)).tables["scale"])
    assert len(table) == 2 * 5
    assert hook_count(model) == 0
    weights = bootstrap(sequences)[:, documents].numpy()
    # A fixed scale is centred and its would-be scale has no eps.
    as_norm = "rms_norm" if kind == "rms_norm" else "layer_norm"
    eps = 0.0 if kind == "fixed_scale" else EPS
    for site in lens.sites:
        inputs = norm_inputs(model, site.path, rows)
        for group in ("first", "rest"):
            row = table.loc[(site.label, group)]
            expected = oracle.summary(inputs, as_norm, eps, group, weights)
            got = row[MEASURES].astype(float)
            # The float32 forward of a padded batch differs from that of one sequence by rounding;
            # the spread of few, nearly equal scales magnifies it.
            pd.testing.assert_series_equal(
                got, pd.Series(expected)[MEASURES], rtol=2e-4, atol=2e-6, check_names=False
            )
            for name in QUANTILES:
                assert row[name] == pytest.approx(expected[name], rel=3e-3)
            wrong = oracle.summary(inputs, as_norm, eps + 0.3, group, weights)
            assert abs(row["mean"] / wrong["mean"] - 1) > 1e-3
            if kind != "fixed_scale":
                assert row["applied"]
                assert math.isnan(row["applied_scale"])


def test_eps_of_the_spec_is_used(lens: Lens) -> None:
    context = context_of(lens, ScaleParameters(), sequences_of(random_rows()))
    look = observing(lens, Need.NORM_MOMENTS)
    sites = tuple(
        dataclasses.replace(s, spec=dataclasses.replace(s.spec, eps=0.0)) for s in lens.sites
    )
    other = dataclasses.replace(context, lens=dataclasses.replace(lens, sites=sites))
    right = by_row(stream(KERNEL, context, look).tables["scale"])["mean"]
    wrong = by_row(stream(KERNEL, other, look).tables["scale"])["mean"]
    assert (right / wrong - 1 > 1e-6).all()


def test_fixed_scales_are_given_as_applied_constants() -> None:
    model = tiny_fixed_scale(vocab_size=VOCABULARY)
    lens = lens_of(model)
    context = context_of(lens, ScaleParameters(), sequences_of(random_rows()))
    finding = stream(KERNEL, context, observing(lens, Need.NORM_MOMENTS))
    table = by_row(finding.tables["scale"])
    assert not table["applied"].any()
    for site in lens.sites:
        expected = model.get_submodule(site.path).get_buffer("scale").item()
        assert table.loc[(site.label, "rest"), "applied_scale"] == pytest.approx(expected, rel=1e-6)
    headline = {h.name: h for h in finding.headline}
    assert headline["live_sites"].value == 0
    assert headline["spread"].n == 0
    assert math.isnan(headline["spread"].value)
    assert headline["would_be_spread"].value > 0


def test_token_scale_of_each_kind() -> None:
    mean, variance = torch.tensor(3.0), torch.tensor(7.0)
    specs = {
        NormSpec(NormKind.LAYER_NORM, 4, eps=9.0, centred=True): (4.0, None),
        NormSpec(NormKind.RMS_NORM, 4, eps=9.0): (5.0, None),
        NormSpec(NormKind.SIMPLE_RMS_NORM, 4, eps=9.0): (5.0, None),
        NormSpec(NormKind.SCALE_NORM, 4, eps=0.1, gain=True): (8.0, None),
        NormSpec(NormKind.L2_NORM, 4, eps=9.0): (9.0, None),
        NormSpec(NormKind.FIXED_SCALE, 4, centred=True, fixed_scale=2.5): (7**0.5, [2.5] * 3),
        NormSpec(NormKind.FIXED_SCALE, 4, fixed_scale=2.5): (4.0, [2.5] * 3),
        NormSpec(NormKind.FIXED_SCALE, 4, position_scales=(2.5, 0.5)): (4.0, [2.5, 0.5, 0.5]),
        NormSpec(
            NormKind.FIXED_SCALE, 4, eps=1e12, centred=True, fixed_scale=1e6, eps_encoded=True
        ): (7**0.5, [1e6] * 3),
        NormSpec(NormKind.IDENTITY, 4): (7**0.5, [1.0] * 3),
        NormSpec(NormKind.BATCH_NORM, 4, eps=0.1): (7**0.5, None),
    }
    for spec, (scale, constants) in specs.items():
        assert token_scale(spec, mean, variance).item() == pytest.approx(scale), spec
        found = constant_scale(spec, 3)
        assert (None if found is None else found.tolist()) == constants, spec
    for kind in (NormKind.L1_NORM, NormKind.CRMS_NORM):
        measured = torch.tensor(0.75)
        assert token_scale(NormSpec(kind, 4, eps=9.0), mean, variance, measured) is measured
        with pytest.raises(ValueError, match="has to be measured"):
            token_scale(NormSpec(kind, 4, eps=9.0), mean, variance)
    for kind in (NormKind.OPAQUE, NormKind.DYT, NormKind.ELN):
        with pytest.raises(ValueError, match=kind.value):
            token_scale(NormSpec(kind, 4, alpha=0.5), mean, variance)


def test_constant_scale_has_no_spread_and_two_points_have_a_known_one(lens: Lens) -> None:
    sequences = sequences_of([[1, 2, 3, 4, 5]] * 4)
    context = context_of(lens, ScaleParameters(), sequences)

    def constant(batch: Batch) -> Observed:
        ones = torch.ones(batch.ids.shape)
        return invented(context, 2 * ones, (9 - EPS) * ones)

    def two_points(batch: Batch) -> Observed:
        variance = torch.full(batch.ids.shape, 9 - EPS)
        variance[:, 1:3] = 1 - EPS
        return invented(context, torch.zeros(batch.ids.shape), variance)

    flat = by_row(stream(KERNEL, context, constant).tables["scale"])
    assert flat["mean"].to_numpy() == pytest.approx(3)
    assert (flat["spread"] < 1e-7).all()
    assert flat["spread_high"].max() < 1e-7
    assert flat["ones_share"].to_numpy() == pytest.approx(4 / 13, rel=1e-3)
    assert flat["q50"].to_numpy() == pytest.approx(3, rel=3e-3)

    finding = stream(KERNEL, context, two_points)
    table = by_row(finding.tables["scale"])
    rest = table.xs("rest", level="group")
    assert rest["mean"].to_numpy() == pytest.approx(2)
    assert rest["sd"].to_numpy() == pytest.approx(1)
    assert rest["spread"].to_numpy() == pytest.approx(0.5)
    assert (rest["ones_share"] == 0).all()
    assert rest["minimum"].to_numpy() == pytest.approx(1)
    assert rest["maximum"].to_numpy() == pytest.approx(3)
    headline = {h.name: h for h in finding.headline}
    assert headline["spread"].value == pytest.approx(0.5)
    assert headline["spread"].n == 16
    assert headline["first_token_ratio"].value == pytest.approx(1.5)
    assert headline["first_token_ratio_largest"].value == pytest.approx(1.5)
    assert finding.replicates["spread"].shape == (40,)


def test_batches_order_and_padding_do_not_matter_but_the_mask_does(lens: Lens) -> None:
    rows, documents = random_rows(3), [0, 1, 1, 2, 0]
    look = observing(lens, Need.NORM_MOMENTS)

    def table(size: int, *, order: list[int], pad_id: int = 0, extra: int = 0) -> pd.DataFrame:
        sequences = sequences_of(
            [rows[i] for i in order], [documents[i] for i in order], pad_id=pad_id, extra=extra
        )
        finding = stream(KERNEL, context_of(lens, ScaleParameters(), sequences), look, size=size)
        return by_row(finding.tables["scale"]).drop(columns=["layer"])

    whole = table(100, order=[0, 1, 2, 3, 4])
    for other in (
        table(1, order=[0, 1, 2, 3, 4]),
        table(2, order=[4, 2, 0, 1, 3]),
        table(3, order=[0, 1, 2, 3, 4], pad_id=7, extra=9),
    ):
        pd.testing.assert_frame_equal(other, whole, rtol=1e-4)
    unmasked = [row + [0] * (12 - len(row)) for row in rows]
    context = context_of(lens, ScaleParameters(), sequences_of(unmasked, documents))
    wrong = by_row(stream(KERNEL, context, look).tables["scale"])
    gap = (wrong["mean"] / whole["mean"] - 1).abs().xs("rest", level="group")
    assert gap.max() > 1e-3


def test_rows_per_token(lens: Lens) -> None:
    rows = random_rows()
    context = context_of(lens, ScaleParameters(per_token=True), sequences_of(rows))
    finding = stream(KERNEL, context, observing(lens, Need.NORM_MOMENTS))
    tokens, table = finding.tables["tokens"], by_row(finding.tables["scale"])
    assert len(tokens) == len(lens.sites) * sum(map(len, rows))
    assert list(tokens["sequence"].drop_duplicates()) == [0, 1, 2, 3, 4]
    tokens["group"] = np.where(tokens["position"] == 0, "first", "rest")
    means = tokens.groupby(["site", "group"])["scale"].mean()
    pd.testing.assert_series_equal(means, table["mean"], check_like=True, check_names=False)
    plain = context_of(lens, ScaleParameters(), sequences_of(rows))
    assert "tokens" not in stream(KERNEL, plain, observing(lens, Need.NORM_MOMENTS)).tables


def test_no_data_is_nan(lens: Lens) -> None:
    context = context_of(lens, ScaleParameters(), sequences_of([[1], [2]]))
    finding = stream(KERNEL, context, observing(lens, Need.NORM_MOMENTS))
    table = by_row(finding.tables["scale"])
    measures = [*MEASURES[1:], *QUANTILES]
    assert table.xs("rest", level="group")[measures].isna().all(axis=None)
    assert (table.xs("rest", level="group")["status"] == "no_data").all()
    assert table.xs("first", level="group")[measures].notna().all(axis=None)
    assert [h.name for h in finding.headline if h.n] == ["live_sites"]


def test_overflow_is_a_status_and_not_an_average(lens: Lens) -> None:
    sequences = sequences_of([[1, 2, 3, 4]] * 3)
    context = context_of(lens, ScaleParameters(), sequences)

    def overflowing(batch: Batch) -> Observed:
        variance = torch.full(batch.ids.shape, 4 - EPS)
        if 1 in batch.index:
            variance[0, 1], variance[0, 2] = math.inf, math.nan
        return invented(context, torch.ones(batch.ids.shape), variance)

    finding = stream(KERNEL, context, overflowing, size=1)
    table = by_row(finding.tables["scale"])
    rest = table.xs("rest", level="group")
    assert (rest["status"] == "overflow").all()
    assert (table.xs("first", level="group")["status"] == "ok").all()
    assert (rest["n"] == 7).all()
    assert rest["mean"].to_numpy() == pytest.approx(2)
    assert rest["ones_share"].to_numpy() == pytest.approx(0.2, rel=1e-3)
    assert "final (2)" in finding.warnings[0]


def test_no_scale_is_invented_for_an_opaque_norm() -> None:
    lens = lens_of(tiny_gpt2(vocab_size=VOCABULARY))
    opaque = NormSpec(NormKind.OPAQUE, 32)
    first, *others = lens.sites
    mixed = dataclasses.replace(lens, sites=(dataclasses.replace(first, spec=opaque), *others))
    context = context_of(mixed, ScaleParameters(), sequences_of(random_rows()))
    table = by_row(stream(KERNEL, context, observing(mixed, Need.NORM_MOMENTS)).tables["scale"])
    hidden = table.loc[first.label]
    assert (hidden["n"] == 0).all()
    assert (hidden["status"] == "not_applicable").all()
    assert hidden[[*MEASURES[1:], *QUANTILES, "applied_scale"]].isna().all(axis=None)
    assert (table.drop(first.label, level="site")["status"] == "ok").all()
    blind = dataclasses.replace(
        lens, sites=tuple(dataclasses.replace(s, spec=opaque) for s in lens.sites)
    )
    with pytest.raises(NotApplicable, match="no norm that divides tokens by a known scale"):
        KERNEL.init(context_of(blind, ScaleParameters(), context.sequences))


def test_identity_norms_have_a_would_be_scale() -> None:
    model = tiny_gpt2(vocab_size=VOCABULARY)
    model.set_submodule("transformer.h.0.ln_1", nn.Identity())
    lens = lens_of(model)
    context = context_of(lens, ScaleParameters(), sequences_of(random_rows()))
    finding = stream(KERNEL, context, observing(lens, Need.NORM_MOMENTS))
    row = by_row(finding.tables["scale"]).loc[("0.pre_attn", "rest")]
    assert row["kind"] == "identity"
    assert not row["applied"]
    assert row["applied_scale"] == 1
    assert row["mean"] > 0
    assert {h.name: h.value for h in finding.headline}["live_sites"] == 4
    assert all(check.passed for check in finding.checks)


def test_an_unverified_norm_fails_the_check(lens: Lens) -> None:
    context = context_of(lens, ScaleParameters(), sequences_of(random_rows()))
    look = observing(lens, Need.NORM_MOMENTS)
    (passed,) = stream(KERNEL, context, look).checks
    assert passed.passed
    first, *others = lens.verification
    doubtful = dataclasses.replace(first, residual=2 * first.tolerance)
    other = dataclasses.replace(lens, verification=(doubtful, *others))
    (failed,) = stream(KERNEL, dataclasses.replace(context, lens=other), look).checks
    assert failed.value == pytest.approx(2)
    assert not failed.passed
