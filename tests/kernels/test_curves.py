"""``curves``: the oracle on raw points, closed forms, what a bend is, and what it is not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from normlens import runner
from normlens.kernels.curve_bins import MAGNITUDES, Curve, bin_edges, curve_sums
from normlens.kernels.curve_fits import fit, square_floor, square_total
from normlens.kernels.curve_shape import bend, middle_slope, ranges_of, straight_extent
from normlens.models import Lens, open_model
from normlens.norms import DyT
from normlens.results import Result
from normlens.text.sequences import Sequences
from tests.oracles import curves as oracle
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tiny_llama

LENGTHS, DOCUMENTS = (30, 4, 41, 17, 2), (0, 0, 1, 2, 2)
EPS = 3e-4


def rows() -> list[list[int]]:
    generator = torch.Generator().manual_seed(8)
    return [torch.randint(1, 4096, (n,), generator=generator).tolist() for n in LENGTHS]


def corpus() -> Sequences:
    lengths = torch.tensor(LENGTHS)
    ids = torch.full((len(LENGTHS), max(LENGTHS)), 9)
    for i, row in enumerate(rows()):
        ids[i, : len(row)] = torch.tensor(row)
    names = ("book 0", "book 1", "book 2")
    return Sequences(ids, lengths, torch.tensor(DOCUMENTS), names, "toy", "none", 9, "0")


def tiny_dyt() -> nn.Module:
    """The tiny GPT-2 with a DyT of another slope at every norm."""
    model = tiny_gpt2()
    norms = [name for name, part in model.named_modules() if isinstance(part, nn.LayerNorm)]
    for index, name in enumerate(norms):
        norm = DyT(32, alpha=0.4 + 0.1 * index)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0.0, 0.1)
        model.set_submodule(name, norm)
    return model.eval()


@cache
def lens_of(name: str) -> Lens:
    models = {
        "gpt2": tiny_gpt2,
        "llama": tiny_llama,
        "fixed": tiny_fixed_scale,
        "dyt": tiny_dyt,
    }
    return open_model(models[name](), tokenizer=None, name=name)


@cache
def run(name: str) -> Result:
    (found,) = runner.run(["curves"], lens_of(name), corpus(), batch_size=2)
    return found


def curve_of(x: np.ndarray, y: np.ndarray) -> Curve:
    return Curve(curve_sums(torch.from_numpy(x), torch.from_numpy(y)))


def s_curve(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of very different scale under LayerNorm: raw points of an S."""
    draw = np.random.default_rng(seed)
    scales = draw.lognormal(0, 0.8, (400, 1))
    x = scales * draw.standard_t(4, (400, 64)) + 0.1
    return x.ravel(), oracle.layer_norm(x, EPS).ravel()


def elements(name: str, label: str, group: str) -> tuple[np.ndarray, np.ndarray]:
    lens = lens_of(name)
    (site,) = [s for s in lens.sites if s.label == label]
    norm = oracle.layer_norm if name == "gpt2" else oracle.rms_norm
    x = [oracle.norm_inputs(lens.model, lens.module(site), row) for row in rows()]
    kept = np.concatenate([one[:1] if group == "first" else one[1:] for one in x])
    return kept.ravel(), norm(kept, EPS).ravel()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("group", ["first", "rest"])
@pytest.mark.parametrize("label", ["0.pre_attn", "1.pre_mlp", "final"])
def test_fits_of_a_model_are_those_of_its_raw_points(name: str, group: str, label: str) -> None:
    x, y = elements(name, label, group)
    found = run(name)
    row = found.tables["fits"].set_index(["site", "group"]).loc[(label, group)]
    assert row["n"] == len(x)
    assert row["rms"] == pytest.approx(oracle.rms(x), rel=1e-5)
    slope, intercept = oracle.fit_line(x, y)
    assert row["line_slope"] == pytest.approx(slope, rel=1e-4)
    assert row["line_intercept"] == pytest.approx(intercept, abs=1e-5)
    fitted = oracle.tanh(x, row["tanh_s"], row["tanh_alpha"])
    assert row["tanh_r2"] == pytest.approx(oracle.r2(y, fitted), abs=2e-5)
    fitted = oracle.eln(x, row["eln_s"], row["eln_beta"])
    assert row["eln_r2"] == pytest.approx(oracle.r2(y, fitted), abs=2e-5)
    assert row["line_r2"] == pytest.approx(oracle.r2(y, oracle.line(x, slope, intercept)), abs=1e-6)
    tails = found.tables["tails"].set_index(["site", "group"]).loc[(label, group)]
    assert tails["n"].sum() == len(x)
    for _, part in tails.iterrows():
        inside = (np.abs(x) >= part["from_x"]) & (np.abs(x) < part["to_x"])
        assert part["n"] == inside.sum()
        error = y[inside] - oracle.tanh(x[inside], row["tanh_s"], row["tanh_alpha"])
        assert part["tanh_error"] == pytest.approx(oracle.rms(error), rel=5e-3)
        straight = row["slope"] * np.abs(x[inside])
        bent = (y[inside] * np.sign(x[inside])).mean() / straight.mean()
        assert part["bend"] == pytest.approx(bent, rel=1e-4)
    assert found.passed


def test_fits_equal_scipy_on_raw_points_of_an_s() -> None:
    x, y = s_curve()
    curve = curve_of(x, y)
    found = fit(curve)
    s, alpha = oracle.fit_tanh(x, y)
    assert (found.tanh.s, found.tanh.alpha) == pytest.approx((s, alpha), rel=1e-3)
    s, beta = oracle.fit_eln(x, y)
    assert (found.eln.s, found.eln.beta) == pytest.approx((s, beta), rel=1e-3)
    assert not found.tanh.straight
    # The error from the bins, in R²: far below any difference between the fits.
    total = square_total(curve)
    for fitted, predicted in (
        (found.tanh, oracle.tanh(x, *oracle.fit_tanh(x, y))),
        (found.eln, oracle.eln(x, s, beta)),
        (found.line, oracle.line(x, *oracle.fit_line(x, y))),
    ):
        r2 = 1 - fitted.square_error(curve) / total
        assert r2 == pytest.approx(oracle.r2(y, predicted), abs=1e-5)


def test_no_fit_beats_the_floor_and_the_line_loses_in_the_tail() -> None:
    curve = curve_of(*s_curve())
    found = fit(curve)
    floor = square_floor(curve)
    assert floor < min(f.square_error(curve) for f in (found.tanh, found.eln, found.line))
    tail = curve.within(ranges_of(curve) == 4)
    errors = found.errors(tail)
    assert errors["line"] > 2 * max(errors["tanh"], errors["eln"])


@pytest.mark.parametrize("shape", ["tanh", "eln"])
def test_a_curve_made_by_a_fit_gives_its_constants_back(shape: str) -> None:
    x = np.random.default_rng(1).standard_t(3, 20_000) * 5
    y = oracle.tanh(x, 3.2, 0.21) if shape == "tanh" else oracle.eln(x, 3.2, 1 / 0.21**2)
    curve = curve_of(x, y)
    found = fit(curve)
    right, wrong = (found.tanh, found.eln) if shape == "tanh" else (found.eln, found.tanh)
    assert (right.s, right.alpha) == pytest.approx((3.2, 0.21), rel=2e-4)
    total = square_total(curve)
    assert right.square_error(curve) / total < 1e-5
    assert wrong.square_error(curve) / total > 2e-4


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3e3])
def test_a_straight_line_is_called_one(scale: float) -> None:
    x = np.random.default_rng(2).standard_t(3, 5000) * scale
    curve = curve_of(x, 0.7 * x)
    found = fit(curve)
    assert found.tanh.straight and found.eln.straight
    assert found.tanh.slope == pytest.approx(0.7, rel=1e-4)
    assert found.line.slope == pytest.approx(0.7, rel=1e-9)
    slope = middle_slope(curve)
    assert bend(curve, slope) == pytest.approx(1, rel=1e-9)
    extent = straight_extent(curve, slope, 0.01)
    assert extent.share == 1
    assert np.abs(x).max() <= extent.to < 1.13 * np.abs(x).max()


def test_a_curve_is_straight_up_to_its_knee() -> None:
    x = np.random.default_rng(3).uniform(-4, 4, 40_000)
    curve = curve_of(x, np.clip(x, -2.6, 2.6))
    slope = middle_slope(curve)
    assert slope == pytest.approx(1, rel=1e-6)
    extent = straight_extent(curve, slope, 0.1)
    assert extent.to == pytest.approx(2.6 / 0.9, rel=0.13)
    assert extent.share == pytest.approx((np.abs(x) < extent.to).mean(), abs=1e-3)
    assert straight_extent(curve, slope, 0.5).share == 1


def test_bins_hold_every_element_at_its_place() -> None:
    x = np.concatenate([np.random.default_rng(4).lognormal(0, 6, 2000), [0.0, 1e-30, 3e6, 2.0]])
    x = np.float32(x * np.random.default_rng(5).choice([-1, 1], len(x)))
    sums = curve_sums(torch.from_numpy(x), torch.from_numpy(3 * x)).numpy()
    edges = bin_edges()
    assert sums.shape == (2, MAGNITUDES, 6)
    for index in (0, 1, 100, 112, MAGNITUDES - 1):
        upper = np.inf if index == MAGNITUDES - 1 else edges[index + 1]
        inside = (np.abs(x) >= edges[index]) & (np.abs(x) < upper)
        for sign, chosen in enumerate((inside & np.signbit(x), inside & ~np.signbit(x))):
            values = x[chosen].astype(float)
            expected = [len(values), values.sum(), (values**2).sum()]
            assert sums[sign, index, :3] == pytest.approx(expected, rel=1e-9)
            assert sums[sign, index, 5] == pytest.approx(3 * (values**2).sum(), rel=1e-6)
    assert sums[..., 0].sum() == len(x)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_slopes_are_one_over_the_scale(name: str) -> None:
    slopes = run(name).tables["slopes"].set_index(["site", "group"])
    (scales,) = runner.run(
        ["scale"], lens_of(name), corpus(), parameters={"scale": {"per_token": True}}
    )
    tokens = scales.tables["tokens"]
    for label in ("0.pre_attn", "final"):
        chosen = tokens[(tokens["site"] == label) & (tokens["position"] > 0)]["scale"]
        row = slopes.loc[(label, "rest")]
        assert row["n"] == len(chosen)
        assert row["mean"] == pytest.approx((1 / chosen).mean(), rel=1e-5)
        assert row["spread"] == pytest.approx(
            (1 / chosen).std(ddof=0) / (1 / chosen).mean(), rel=1e-4
        )
        assert row["spread_low"] < row["spread"] < row["spread_high"]


def test_a_fixed_scale_is_a_line_up_to_the_means_it_takes_away() -> None:
    lens = lens_of("fixed")
    site = lens.sites[2]
    x = [oracle.norm_inputs(lens.model, lens.module(site), row)[1:] for row in rows()]
    x = np.concatenate(x)
    assert site.spec.fixed_scale is not None
    y = (x - x.mean(-1, keepdims=True)) / site.spec.fixed_scale
    slope, intercept = oracle.fit_line(x.ravel(), y.ravel())
    found = run("fixed")
    row = found.tables["fits"].set_index(["site", "group"]).loc[(site.label, "rest")]
    expected = oracle.r2(y.ravel(), oracle.line(x.ravel(), slope, intercept))
    assert row["line_r2"] == pytest.approx(expected, abs=1e-5)
    assert (found.tables["slopes"]["spread"] < 1e-6).all()
    assert (run("gpt2").tables["slopes"]["spread"] > 1e-2).all()


def test_an_elementwise_norm_is_its_own_fit_and_has_no_slopes() -> None:
    found = run("dyt")
    lens = lens_of("dyt")
    fits = found.tables["fits"].set_index(["site", "group"])
    for site in lens.sites:
        row = fits.loc[(site.label, "rest")]
        assert row["tanh_r2"] == pytest.approx(1, abs=1e-5)
        assert row["tanh_s"] == pytest.approx(1, rel=1e-2)
        assert row["tanh_alpha"] == pytest.approx(site.spec.alpha, rel=1e-2)
    slopes = found.tables["slopes"]
    assert set(slopes["status"]) == {"not_applicable"}
    assert (slopes["n"] == 0).all() and slopes["mean"].isna().all()


def test_a_model_without_norms_is_not_applicable() -> None:
    lens = lens_of("gpt2")
    bare = Lens(lens.model, None, (), (), lens.identity, lens.lineage, lens.edits, lens.placement)
    (found,) = runner.run(["curves"], bare, corpus())
    assert "no norm" in found.not_applicable["gpt2"]


def test_a_token_that_is_not_finite_is_left_out_and_said() -> None:
    lens = open_model(tiny_gpt2(), tokenizer=None, name="broken")
    with torch.no_grad():
        lens.model.get_input_embeddings().get_parameter("weight")[rows()[2][5]] = torch.inf
    (found,) = runner.run(["curves"], lens, corpus(), batch_size=2)
    row = found.tables["fits"].set_index(["site", "group"]).loc[("0.pre_attn", "rest")]
    assert row["status"] == "overflow"
    assert row["n"] == 32 * (sum(LENGTHS) - len(LENGTHS) - 1)
    assert np.isfinite(row["tanh_r2"])
    assert "0.pre_attn (1)" in found.warnings[0]
