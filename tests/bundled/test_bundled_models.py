"""The four models that come with normlens are what their cards say."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from normlens.capture.batches import batches
from normlens.capture.collector import component_weights
from normlens.capture.forward import observe
from normlens.capture.tree import component_tree
from normlens.catalog import Need
from normlens.errors import UsageError
from normlens.kernels.direct_effect import direct_effects
from normlens.kernels.readout import read_from_logits, read_logits
from normlens.models import Lens, convert_eps_encoded, encode_eps, open_model, tokenizer_of
from normlens.models.components import component_view
from normlens.models.lineage import weight_cosine
from normlens.norms import NormKind
from normlens.resources import data_path
from normlens.results import Result
from normlens.runner import run
from normlens.text import Sequences, load_corpus

NAMES = ("books-ln", "books-control", "books-aux", "books-lnfree")
SEQUENCES = 48


@cache
def lens_of(name: str) -> Lens:
    if name == "eps-encoded twin":
        return encode_eps(lens_of("books-lnfree"))
    return open_model(name)


@cache
def corpus() -> Sequences:
    tokenizer = tokenizer_of(lens_of("books-ln"))
    return load_corpus("books", tokenizer, context=128, sequences=SEQUENCES)


@cache
def result(analysis: str, name: str) -> Result:
    return run([analysis], lens_of(name), corpus(), batch_size=SEQUENCES)[0]


def headline(analysis: str, name: str, number: str) -> float:
    rows = next(iter(result(analysis, name).headline.values()))
    return next(row.value for row in rows if row.name == number)


@pytest.mark.parametrize("name", NAMES)
def test_every_norm_is_understood(name: str) -> None:
    lens = lens_of(name)
    expected = NormKind.FIXED_SCALE if name == "books-lnfree" else NormKind.LAYER_NORM
    assert [site.spec.kind for site in lens.sites] == [expected] * 13
    assert all(check.passed for check in lens.verification)


def test_losses_are_within_their_targets() -> None:
    loss = {name: headline("output", name, "cross_entropy") for name in NAMES}
    assert loss["books-ln"] < 4.3
    assert loss["books-control"] <= loss["books-ln"] + 0.01
    assert loss["books-lnfree"] <= loss["books-control"] + 0.10


def test_lineage_shows_in_the_weights() -> None:
    ancestor = lens_of("books-ln")
    for name in NAMES[1:]:
        assert lens_of(name).lineage.ancestor == "books-ln"
        assert weight_cosine(ancestor, lens_of(name)) > 0.9


@pytest.mark.components
@pytest.mark.parametrize("name", [*NAMES, "eps-encoded twin"])
def test_components_add_up_to_the_logits(name: str) -> None:
    found = result("logit-attribution", name)
    assert [check.name for checks in found.checks.values() for check in checks] == ["conservation"]
    assert found.passed


@pytest.mark.components
@pytest.mark.parametrize("name", ["books-ln", "books-lnfree", "eps-encoded twin"])
def test_projecting_without_the_gain_does_not_add_up(name: str) -> None:
    lens = lens_of(name)
    view = component_view(lens)
    weights = component_weights(view, lens)
    ones = torch.ones(2, len(corpus().document_ids), dtype=torch.float64)
    (batch,) = batches(corpus(), 0, 4, size=4, device="cpu", weights=ones)
    seen = observe(component_tree(view, lens), batch, frozenset({Need.COMPONENTS, Need.LOGITS}))
    assert seen.components is not None
    assert seen.logits is not None
    logit = read_from_logits(seen.logits, batch.ids)
    right = direct_effects(seen.components, weights, read_logits(weights, batch.ids))
    naive = (weights.w_u.T[batch.ids] * seen.components.residual).sum(-1) / right.scale
    assert right.discrepancy(logit)[batch.mask].max() < 1e-5
    assert (naive - logit)[batch.mask].abs().max() > 1e-2


@pytest.mark.components
def test_attribution_is_exact_without_a_live_scale_and_not_with_one() -> None:
    assert headline("logit-attribution", "books-lnfree", "nmae_heads") == 0
    assert headline("logit-attribution", "eps-encoded twin", "nmae_heads") == 0
    assert headline("logit-attribution", "books-ln", "nmae_heads") > 0.2


def test_the_eps_encoded_twin_converts_back_exactly() -> None:
    twin = lens_of("eps-encoded twin")
    assert all(site.spec.eps_encoded for site in twin.sites)
    back = convert_eps_encoded(twin)
    ids = corpus().ids[:2]
    with torch.inference_mode():
        one, two, three = (
            m.model(input_ids=ids).logits for m in (lens_of("books-lnfree"), twin, back)
        )
    torch.testing.assert_close(two, one, rtol=0, atol=1e-3)
    torch.testing.assert_close(three, one, rtol=0, atol=1e-3)


def test_plain_transformers_loads_layer_norm_models_and_refuses_the_other() -> None:
    ids = corpus().ids[:2]
    plain = GPT2LMHeadModel.from_pretrained(data_path("models", "books-ln"))
    with torch.inference_mode():
        expected = lens_of("books-ln").model(input_ids=ids).logits
        torch.testing.assert_close(plain(input_ids=ids).logits, expected)
    with pytest.raises(ValueError, match="normlens-gpt2"):
        AutoModelForCausalLM.from_pretrained(data_path("models", "books-lnfree"))


@pytest.mark.components
def test_golden_mode_needs_sequences_without_bos() -> None:
    parameters = {"logit-attribution": {"mode": "golden"}}
    with pytest.raises(UsageError, match="--bos none"):
        run(["logit-attribution"], lens_of("books-ln"), corpus(), parameters=parameters)
