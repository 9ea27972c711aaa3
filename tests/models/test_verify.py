"""Detection and verification: a module that is not what its class says is found out."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from normlens.errors import HookMismatch, LoadError
from normlens.hooks import hook_count
from normlens.models import open_model
from normlens.models.detect import candidate_specs, eps_dwarfs, is_norm, live_spec
from normlens.models.families import family_of
from normlens.models.lens import Role
from normlens.models.sites import Place, find_places
from normlens.models.verify import residual, sample_tokens, verify
from normlens.norms import FixedScale, NormKind, NormSpec, make_norm
from tests.norms.specs import VARIANTS, randomised
from tests.tiny import tiny_gpt2, tiny_llama

EPS = 0.02


class Tanh(nn.Module):
    """An elementwise stand-in for a norm."""

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh()


class ForgetfulNorm(nn.LayerNorm):
    """Claims to be a LayerNorm and drops its gain."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / self.weight


def test_an_unknown_class_is_opaque() -> None:
    model = tiny_gpt2()
    model.transformer.h[1].ln_1 = Tanh()
    lens = open_model(model, tokenizer=None)
    assert lens.sites[2].spec == NormSpec(NormKind.OPAQUE, 32)
    assert math.isnan(lens.verification[2].residual)
    assert [check.passed for check in lens.verification] == [True, True, False, True, True]


def test_a_subclass_that_computes_something_else_is_opaque() -> None:
    model = tiny_gpt2()
    old = model.transformer.ln_f
    model.transformer.ln_f = ForgetfulNorm(32, eps=old.eps)
    model.transformer.ln_f.load_state_dict(old.state_dict())
    lens = open_model(model, tokenizer=None)
    assert lens.sites[-1].spec.kind is NormKind.OPAQUE
    assert lens.verification[-1].residual > 1e-2


def test_a_norm_that_does_not_run_is_an_error() -> None:
    model = tiny_gpt2()
    block = model.transformer.h[0]
    block.mlp.forward = lambda x: x
    block.forward = lambda x, *_args, **_kwargs: x
    with pytest.raises(HookMismatch, match=r"transformer\.h\.0\.ln_1"):
        open_model(model, tokenizer=None)


def test_no_hooks_stay_after_a_failure() -> None:
    model = tiny_gpt2()

    def broken(*_: object, **__: object) -> Tensor:
        raise RuntimeError("broken")

    model.transformer.h[1].mlp.forward = broken
    with pytest.raises(RuntimeError, match="broken"):
        open_model(model, tokenizer=None)
    assert hook_count(model) == 0


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (
            nn.LayerNorm(8, eps=EPS),
            NormSpec(NormKind.LAYER_NORM, 8, eps=EPS, centred=True, gain=True, bias=True),
        ),
        (
            nn.LayerNorm(8, eps=EPS, bias=False),
            NormSpec(NormKind.LAYER_NORM, 8, eps=EPS, centred=True, gain=True),
        ),
        (
            nn.LayerNorm(8, elementwise_affine=False),
            NormSpec(NormKind.LAYER_NORM, 8, eps=1e-5, centred=True),
        ),
        (nn.RMSNorm(8, eps=EPS), NormSpec(NormKind.RMS_NORM, 8, eps=EPS, gain=True)),
        (
            nn.RMSNorm(8, elementwise_affine=False),
            NormSpec(NormKind.RMS_NORM, 8, eps=torch.finfo(torch.float32).eps),
        ),
        (nn.Identity(), NormSpec(NormKind.IDENTITY, 8)),
        (
            FixedScale(8, 2.5, bias=False),
            NormSpec(NormKind.FIXED_SCALE, 8, centred=True, gain=True, fixed_scale=2.5),
        ),
        (
            FixedScale(8, 2.5, centred=False),
            NormSpec(NormKind.FIXED_SCALE, 8, gain=True, bias=True, fixed_scale=2.5),
        ),
        (nn.LayerNorm((2, 8)), NormSpec(NormKind.OPAQUE, 8)),
        (nn.LayerNorm(4), NormSpec(NormKind.OPAQUE, 8)),
        (nn.RMSNorm(4), NormSpec(NormKind.OPAQUE, 8)),
        (nn.GroupNorm(2, 8), NormSpec(NormKind.OPAQUE, 8)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_spec_of_a_module(module: nn.Module, expected: NormSpec) -> None:
    assert live_spec(module, 8) == expected


@pytest.mark.kind_cell("detection")
@pytest.mark.parametrize("spec", VARIANTS.values(), ids=list(VARIANTS))
def test_a_made_norm_is_detected_as_its_spec(spec: NormSpec) -> None:
    module = randomised(make_norm(spec))
    assert is_norm(module) == (spec.kind is not NormKind.IDENTITY)
    assert live_spec(module, spec.width) == spec
    assert candidate_specs(module, spec.width, 1.0) == (spec,)
    if spec.kind is not NormKind.IDENTITY:
        assert live_spec(module, spec.width + 1).kind is NormKind.OPAQUE


@pytest.mark.kind_cell("detection")
@pytest.mark.parametrize("spec", VARIANTS.values(), ids=list(VARIANTS))
def test_every_kind_is_verified_from_its_parameters(spec: NormSpec) -> None:
    module = randomised(make_norm(spec))
    generator = torch.Generator().manual_seed(5)
    x = 0.5 + torch.randn(2, 3, spec.width, generator=generator)
    place = Place(0, Role.PRE_MLP, "norm", (), module)
    y = module(x).detach()
    assert residual(spec, place, x, y) < 1e-6
    for wrong in wrong_specs(spec):
        assert residual(wrong, place, x, y) > 1e-3, wrong


def wrong_specs(spec: NormSpec) -> list[NormSpec]:
    """The spec with one constant changed, each in turn."""
    changes: dict[str, object] = {"factor": 1.5 * spec.factor}
    if spec.kind.has_live_scale and spec.kind.value not in ("l2_norm", "scale_norm"):
        changes["eps"] = 0.3
    if spec.alpha is not None:
        changes["alpha"] = 1.5 * spec.alpha
    if spec.fixed_scale is not None:
        changes["fixed_scale"] = 1.5 * spec.fixed_scale
    if spec.position_scales is not None:
        changes["position_scales"] = (*spec.position_scales[:-1], 9.0)
    if not spec.kind.batch_coupled and not spec.kind.elementwise:
        changes["centred"] = not spec.centred
    return [dataclasses.replace(spec, **{name: value}) for name, value in changes.items()]


@pytest.mark.parametrize(
    ("eps", "variance", "encoded"),
    [
        (1e12, 1e4, True),
        (1e12, 1e7, True),
        (1e12, 1e10, False),
        (1e-5, 1.0, False),
        (0.3, 1.0, False),
        (1.0, 1e-7, True),
        (1e-5, 0.0, False),
        (None, 1.0, False),
    ],
)
def test_when_eps_dwarfs_the_variance(eps: float | None, variance: float, encoded: bool) -> None:
    assert eps_dwarfs(eps, variance) == encoded


def test_only_an_eps_under_the_root_can_encode_a_scale() -> None:
    """Elsewhere it is a clamp, or added to the scale: another constant than its root."""
    for kind in ("l2_norm", "scale_norm", "l1_norm", "crms_norm", "batch_norm"):
        module = make_norm(NormSpec.of({"kind": kind, "eps": 1e12}, 8))
        assert [spec.kind for spec in candidate_specs(module, 8, 1.0)] == [NormKind(kind)]
    scaled = make_norm(NormSpec.of({"kind": "layer_norm", "eps": 1e12, "factor": 0.5}, 8))
    fixed, live = candidate_specs(scaled, 8, 1.0)
    assert (fixed.kind, fixed.factor, live.factor) == (NormKind.FIXED_SCALE, 0.5, 0.5)


def test_the_live_reading_stays_a_candidate() -> None:
    module = nn.LayerNorm(8, eps=1e12)
    fixed, live = candidate_specs(module, 8, 1.0)
    assert fixed.kind is NormKind.FIXED_SCALE and fixed.fixed_scale == 1e6
    assert live.kind is NormKind.LAYER_NORM and live.eps == 1e12
    assert len(candidate_specs(nn.LayerNorm(8), 8, 1.0)) == 1


def test_activations_as_large_as_the_eps_keep_the_norm_live() -> None:
    """Where var reaches eps the published format stops being linear; it must not be said to be."""
    model = tiny_gpt2(layer_norm_epsilon=1e12)
    for name, parameter in model.named_parameters():
        if ".ln_" in name and name.endswith("weight"):
            parameter.data.mul_(1e6)
    model.transformer.wte.weight.data.mul_(1e6)
    lens = open_model(model, tokenizer=None)
    assert lens.sites[0].spec.kind is NormKind.LAYER_NORM
    assert lens.verification[0].passed


@pytest.mark.parametrize(
    "wrong", [{"eps": 0.3}, {"centred": False}, {"gain": False}, {"bias": False}], ids=str
)
def test_residual_sees_a_wrong_spec(wrong: dict[str, object]) -> None:
    module = nn.LayerNorm(8, eps=0.02)
    generator = torch.Generator().manual_seed(0)
    module.weight.data.normal_(1, 0.3, generator=generator)
    module.bias.data.normal_(0, 0.3, generator=generator)
    x = 0.5 + torch.randn(2, 3, 8, generator=generator)
    place = Place(0, Role.PRE_MLP, "norm", (), module)
    spec = live_spec(module, 8)
    y = module(x).detach()
    assert residual(spec, place, x, y) < 1e-6
    assert residual(dataclasses.replace(spec, **wrong), place, x, y) > 1e-2


def test_a_zero_output_has_residual_zero() -> None:
    module = nn.LayerNorm(4)
    nn.init.zeros_(module.weight)
    x = torch.ones(1, 1, 4)
    place = Place(0, Role.PRE_MLP, "norm", (), module)
    assert residual(live_spec(module, 4), place, x, module(x).detach()) == 0


def test_sample_is_fixed_and_fits_the_model() -> None:
    model = tiny_gpt2(vocab_size=11, n_positions=5)
    ids = sample_tokens(model)
    assert ids.shape == (2, 5)
    assert ids.min() >= 0 and ids.max() < 11
    assert torch.equal(ids, sample_tokens(model))


def test_order_of_execution_is_observed_not_assumed() -> None:
    model = tiny_gpt2()
    first, second = model.transformer.h
    forwards = first.forward, second.forward
    first.forward, second.forward = forwards[1], forwards[0]
    sites, _ = verify(model, find_places(model, family_of(model)))
    assert [site.layer for site in sites] == [1, 1, 0, 0, None]
    assert [site.order for site in sites] == [0, 1, 2, 3, 4]


def test_a_norm_no_rule_names_is_an_error() -> None:
    model = tiny_gpt2()
    model.transformer.h[0].mlp.extra = nn.LayerNorm(32)
    with pytest.raises(LoadError, match=r"LayerNorm at transformer\.h\.0\.mlp\.extra"):
        open_model(model, tokenizer=None)


def test_a_missing_norm_is_an_error() -> None:
    model = tiny_llama()
    del model.model.layers[1].input_layernorm
    with pytest.raises(LoadError, match=r"no module model\.layers\.1\.input_layernorm.*Identity"):
        open_model(model, tokenizer=None)


def test_one_module_in_two_places_is_an_error() -> None:
    model = tiny_gpt2()
    model.transformer.h[0].ln_2 = model.transformer.h[0].ln_1
    with pytest.raises(LoadError, match=r"ln_1 and transformer\.h\.0\.ln_2 are one module"):
        open_model(model, tokenizer=None)


def test_a_model_without_an_unembedding_is_an_error() -> None:
    with pytest.raises(LoadError, match="open the causal-LM class"):
        open_model(tiny_gpt2().transformer, tokenizer=None)
