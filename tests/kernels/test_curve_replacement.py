"""Fitted replacements: the function that was fitted is the one that runs, and its cost."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from normlens import runner
from normlens.errors import NotApplicable, UsageError
from normlens.kernels.curve_replacement import (
    FittedNorm,
    ReplaceFitted,
    fitted_specs,
    measure_replacement,
)
from normlens.models import Lens, open_model
from normlens.models.edits import convert
from normlens.models.identity import weights_sha256
from normlens.norms import NormKind
from normlens.results import Result
from normlens.text.sequences import Sequences
from tests.oracles import curves as oracle
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tiny_llama

LENGTHS = (19, 4, 33, 12)
MODELS = {"gpt2": tiny_gpt2, "llama": tiny_llama}
each_kind = pytest.mark.parametrize("kind", [NormKind.DYT, NormKind.ELN])
each_model = pytest.mark.parametrize("name", MODELS)


def corpus() -> Sequences:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 4096, (len(LENGTHS), max(LENGTHS)), generator=generator)
    documents = torch.tensor([0, 0, 1, 2])
    names = ("book 0", "book 1", "book 2")
    lengths = torch.tensor(LENGTHS)
    return Sequences(ids, lengths, documents, names, "toy", "none", 9, "0")


@cache
def lens_of(name: str) -> Lens:
    return open_model(MODELS[name](), tokenizer=None, name=name)


@cache
def curves(name: str) -> Result:
    (found,) = runner.run(["curves"], lens_of(name), corpus())
    return found


def replaced(name: str, norms: dict[str, FittedNorm]) -> Lens:
    return convert(lens_of(name), ReplaceFitted(tuple(norms.values()))).lens


@each_model
@each_kind
def test_the_new_norm_is_gamma_times_the_fit_plus_beta(name: str, kind: NormKind) -> None:
    lens = lens_of(name)
    norms = fitted_specs(curves(name), lens, kind)
    assert list(norms) == [site.label for site in lens.sites]
    before = weights_sha256(lens.model)
    new = replaced(name, norms)
    fits = curves(name).tables["fits"].set_index(["site", "group"])
    x = np.random.default_rng(0).standard_t(3, (50, 32)) * 4
    for old, site in zip(lens.sites, new.sites, strict=True):
        assert site.spec.kind is kind
        row = fits.loc[(old.label, "rest")]
        if kind is NormKind.DYT:
            xhat = oracle.tanh(x, row["tanh_s"], row["tanh_alpha"])
        else:
            xhat = oracle.eln(x, row["eln_s"], row["eln_beta"])
        parameters = dict(lens.module(old).named_parameters())
        expected = xhat * parameters["weight"].detach().double().numpy()
        if "bias" in parameters:
            expected = expected + parameters["bias"].detach().double().numpy()
        with torch.no_grad():
            y = new.module(site)(torch.tensor(x).float()).double().numpy()
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert weights_sha256(lens.model) == before
    assert "fitted=" in new.edits[-1]


@each_kind
def test_the_cost_is_that_of_the_edited_model(kind: NormKind) -> None:
    lens, text = lens_of("gpt2"), corpus()
    norms = fitted_specs(curves("gpt2"), lens, kind)
    found = measure_replacement(lens, norms, text, batch_size=2).set_index("replaced")
    assert list(found.index) == [*norms, "all"]
    for row, chosen in (("all", norms), ("1.pre_mlp", {"1.pre_mlp": norms["1.pre_mlp"]})):
        n, loss, kl = 0, 0.0, 0.0
        edited = replaced("gpt2", chosen)
        base = 0.0
        for ids, length in zip(text.ids, LENGTHS, strict=True):
            one = ids[None, :length]
            with torch.no_grad():
                log_p, log_q = (
                    m(one).logits[0, :-1].double().log_softmax(-1)
                    for m in (lens.model, edited.model)
                )
            n += length - 1
            loss += F.nll_loss(log_q, one[0, 1:], reduction="sum").item()
            base += F.nll_loss(log_p, one[0, 1:], reduction="sum").item()
            kl += (log_p.exp() * (log_p - log_q)).sum().item()
        assert found.loc[row, "n"] == n
        assert found.loc[row, "loss"] == pytest.approx(loss / n, abs=1e-4)
        assert found.loc[row, "delta_loss"] == pytest.approx((loss - base) / n, abs=1e-4)
        assert found.loc[row, "kl"] == pytest.approx(kl / n, rel=1e-2, abs=1e-4)
        assert found.loc[row, "kl"] > 1e-5
    assert (found["delta_low"] <= found["delta_loss"]).all()
    assert (found["delta_loss"] <= found["delta_high"]).all()


def test_another_slope_costs_more() -> None:
    lens, text = lens_of("gpt2"), corpus()
    norms = fitted_specs(curves("gpt2"), lens, NormKind.DYT)
    worse = {label: dataclasses.replace(norm, gain=3 * norm.gain) for label, norm in norms.items()}
    good, bad = (measure_replacement(lens, n, text)["kl"].iloc[-1] for n in (norms, worse))
    assert bad > 2 * good


def test_only_the_named_norms_are_replaced() -> None:
    lens = lens_of("gpt2")
    norms = fitted_specs(curves("gpt2"), lens, NormKind.DYT, lens.sites[1:2])
    kinds = [site.spec.kind for site in replaced("gpt2", norms).sites]
    assert kinds.count(NormKind.DYT) == 1
    assert kinds[1] is NormKind.DYT


def test_results_of_other_weights_and_models_without_live_scales_are_refused() -> None:
    lens = open_model(tiny_gpt2(seed=7), tokenizer=None, name="gpt2")
    with pytest.raises(UsageError, match="other weights"):
        fitted_specs(curves("gpt2"), lens, NormKind.DYT)
    (scales,) = runner.run(["scale"], lens_of("gpt2"), corpus())
    with pytest.raises(UsageError, match="curves"):
        fitted_specs(scales, lens_of("gpt2"), NormKind.DYT)
    fixed = open_model(tiny_fixed_scale(), tokenizer=None, name="fixed")
    (found,) = runner.run(["curves"], fixed, corpus())
    with pytest.raises(NotApplicable, match="live scale"):
        fitted_specs(found, fixed, NormKind.DYT)
