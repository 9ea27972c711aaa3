"""Every architecture: its norms, where they sit, what they feed and compute."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from normlens.hooks import Hook
from normlens.models import context_length, open_model
from normlens.models.families import family_of
from normlens.models.layout import token_shape
from normlens.models.lens import Layout
from normlens.models.sites import find_places
from normlens.models.verify import sample_tokens, verify
from normlens.norms import NormKind
from normlens.norms.reference import centre, scale_of
from tests.architectures import ARCHITECTURES
from tests.models.expected_architectures import (
    EXPECTED,
    Store,
    every_architecture,
    labels,
    opened,
    run,
)
from tests.oracles import norm as oracle


@pytest.mark.architecture_cell("norms found")
@every_architecture
def test_sites(architecture: str) -> None:
    lens, expected = opened(architecture), EXPECTED[architecture]
    assert [(site.label, site.heads) for site in lens.sites] == labels(expected)
    assert [site.order for site in lens.sites] == list(range(len(lens.sites)))
    on_stream = {site.role.value for site in lens.sites if site.on_stream}
    assert on_stream == expected.stream & {site.role.value for site in lens.sites}
    assert context_length(lens) == expected.context


@pytest.mark.architecture_cell("norms found")
@every_architecture
def test_a_norm_feeds_exactly_the_linears_that_read_its_output(architecture: str) -> None:
    lens = opened(architecture)
    linears = {
        name: module
        for name, module in lens.model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D))
        and not name.startswith(("pooler", "bert.pooler"))
    }
    inputs = {name: Store() for name in linears}
    outputs = {site.label: Store() for site in lens.sites}
    run(
        lens,
        [
            *(Hook(linears[name], "input", store, name) for name, store in inputs.items()),
            *(Hook(lens.module(s), "output", outputs[s.label], s.label) for s in lens.sites),
        ],
    )
    for site in lens.sites:
        y = outputs[site.label].value.flatten()
        readers = {name for name, x in inputs.items() if torch.equal(x.value.flatten(), y)}
        if site.on_stream:
            # The next block reads the stream too; a rule names what is in the norm's own.
            readers = {name for name in readers if name in site.feeds}
        assert set(site.feeds) == readers, site.label


@pytest.mark.architecture_cell("norms verified")
@every_architecture
def test_every_norm_is_verified(architecture: str) -> None:
    lens, expected = opened(architecture), EXPECTED[architecture]
    for site, check in zip(lens.sites, lens.verification, strict=True):
        assert check.passed and check.residual <= check.tolerance, site.label
        assert (site.spec.kind, site.spec.eps) == (expected.kind, expected.eps)


@functools.cache
def vectors(architecture: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Input and output of every site on the sample, ``[batch pos head width]``."""
    lens = opened(architecture)
    stores = {site.label: (Store(), Store()) for site in lens.sites}
    hooks = []
    for site in lens.sites:
        before, after = stores[site.label]
        hooks.append(Hook(lens.module(site), "input", before, site.label))
        hooks.append(Hook(lens.module(site), "output", after, site.label))
    run(lens, hooks)
    batch, pos = sample_tokens(lens.model).shape
    out = {}
    for site in lens.sites:
        pair = []
        for store in stores[site.label]:
            value = store.value
            assert value.shape == (*token_shape(site, batch, pos), site.spec.width)
            if site.layout is Layout.BATCH_HEAD_POS:
                value = value.transpose(1, 2)
            pair.append(value.reshape(batch, pos, site.heads, -1))
        out[site.label] = (pair[0], pair[1])
    return out


def stored_gain_and_bias(module: nn.Module, heads: int, width: int) -> tuple[Tensor, Tensor]:
    """Gain and bias ``[head width]`` from the parameters, as the modelling code uses them."""
    name = type(module).__name__
    state = module.state_dict()
    if name == "StableLmLayerNormPerHead":
        gain = torch.stack([state[f"norms.{head}.weight"] for head in range(heads)])
    else:
        gain = state.get("weight", torch.ones(width))
    if name.startswith("Gemma") or name == "NemotronLayerNorm1P":
        gain = 1 + gain
    bias = state.get("bias", torch.zeros(width))
    return gain.expand(heads, width), bias.expand(heads, width)


@pytest.mark.architecture_cell("norms verified")
@every_architecture
def test_scale_and_output_equal_the_naive_formula(architecture: str) -> None:
    lens, expected = opened(architecture), EXPECTED[architecture]
    constants = {"centred": expected.kind is NormKind.LAYER_NORM, "eps": expected.eps}
    for site in lens.sites:
        x, y = vectors(architecture)[site.label]
        scales = scale_of(site.spec, centre(site.spec, x.double()))
        gain, bias = stored_gain_and_bias(lens.module(site), site.heads, site.spec.width)
        for at in ((0, 0, 0), (1, 3, site.heads - 1), (1, x.shape[1] - 1, 0)):
            vector = x[at].tolist()
            assert scales[at].item() == pytest.approx(oracle.scale(vector, **constants), rel=1e-12)
            want = oracle.norm(vector, gain[at[2]].tolist(), bias[at[2]].tolist(), **constants)
            torch.testing.assert_close(y[at], torch.tensor(want), rtol=1e-5, atol=1e-5)


@pytest.mark.architecture_cell("bfloat16")
@every_architecture
def test_half_precision_is_verified_too(architecture: str) -> None:
    lens = open_model(ARCHITECTURES[architecture](), tokenizer=None, dtype="bfloat16")
    assert all(check.passed for check in lens.verification)
    assert {site.spec for site in lens.sites} == {site.spec for site in opened(architecture).sites}


@pytest.mark.parametrize("architecture", ["nemotron", "llama", "gemma2", "cohere", "stablelm-qk"])
def test_a_forgotten_gain_is_seen(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lens = opened(architecture)
    monkeypatch.setattr("normlens.models.verify.module_gain_and_bias", lambda *_: (None, None))
    sites, checks = verify(lens.model, find_places(lens.model, family_of(lens.model)))
    assert {site.spec.kind for site in sites} == {NormKind.OPAQUE}
    assert all(check.residual > 1e-2 for check in checks)


def set_eps(module: nn.Module, eps: float) -> None:
    for part in module.modules():
        for name in ("eps", "variance_epsilon"):
            if name in vars(part):
                setattr(part, name, eps)


@pytest.mark.parametrize(
    "architecture",
    ["gpt2", "opt", "llama", "gemma3", "olmo2", "cohere", "nemotron", "stablelm-qk", "bert"],
)
def test_eps_is_that_of_the_module_not_of_the_config(architecture: str) -> None:
    model = ARCHITECTURES[architecture]()
    for place in find_places(model, family_of(model)):
        set_eps(place.module, 0.3)
    lens = open_model(model, tokenizer=None)
    assert {site.spec.eps for site in lens.sites} == {0.3}
    assert all(check.passed for check in lens.verification)


def test_an_eps_that_the_code_does_not_have_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """OLMo's eps is in its code: a version with another one must not be taken for verified."""
    from transformers.models.olmo import modeling_olmo

    layer_norm = nn.functional.layer_norm
    monkeypatch.setattr(
        modeling_olmo.F, "layer_norm", lambda *args, eps: layer_norm(*args, eps=0.3)
    )
    lens = open_model(ARCHITECTURES["olmo"](), tokenizer=None)
    assert {site.spec.kind for site in lens.sites} == {NormKind.OPAQUE}
