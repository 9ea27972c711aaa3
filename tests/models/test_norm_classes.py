"""Norms without parameters, DyT, and a class of the user's own, inside a model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from normlens.errors import LoadError
from normlens.models import open_model
from normlens.models.detect import live_spec
from normlens.models.norm_classes import NormClasses
from normlens.models.parameters import gain_and_bias
from normlens.norms import KINDS, DyT, NormKind, NormSpec, make_norm
from tests.tiny import EPS, randomise, tiny_gpt2, tiny_llama

WIDTH = 32


class PowerNorm(nn.Module):
    """RMSNorm with names of its own for eps; the power it is told to use is the truth."""

    def __init__(self, width: int, power: float = 0.5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.tiny, self.power = EPS, power

    def forward(self, x: Tensor) -> Tensor:
        mean_square = x.square().mean(-1, keepdim=True)
        return x / (mean_square + self.tiny) ** self.power * self.weight


class SubclassedNorm(PowerNorm):
    """Registered through its base."""


def describe(module: nn.Module) -> NormSpec:
    assert isinstance(module, PowerNorm)
    return NormSpec(NormKind.RMS_NORM, module.weight.shape[0], eps=module.tiny, gain=True)


OWN: NormClasses = {PowerNorm: describe}


def with_norm(module: nn.Module) -> PreTrainedModel:
    """A tiny Llama whose second norm is ``module``, everything redrawn."""
    model = tiny_llama()
    model.model.layers[0].post_attention_layernorm = module
    return randomise(model, 3)


@pytest.mark.parametrize(
    "module",
    [
        nn.LayerNorm(WIDTH, eps=EPS, elementwise_affine=False),
        nn.LayerNorm(WIDTH, eps=EPS, bias=False),
        nn.RMSNorm(WIDTH, eps=EPS, elementwise_affine=False),
        nn.RMSNorm(WIDTH),
        DyT(WIDTH, 0.7),
        DyT(WIDTH, 0.7, bias=False),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_torch_norm_of_any_kind_is_verified(module: nn.Module, dtype: str) -> None:
    lens = open_model(with_norm(module), tokenizer=None, dtype=dtype)
    site = lens.sites[1]
    assert site.spec == live_spec(lens.module(site), WIDTH)
    assert site.spec.kind is not NormKind.OPAQUE and lens.verification[1].passed
    assert (site.spec.gain, site.spec.bias) == tuple(
        dict(module.named_parameters()).get(name) is not None for name in ("weight", "bias")
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_kind_is_verified_in_a_model(kind: NormKind, dtype: str) -> None:
    """With every parameter and running statistic redrawn, and a depth factor where possible."""
    fields: dict[str, object] = {"kind": kind.value}
    if kind not in (NormKind.SIMPLE_RMS_NORM, NormKind.IDENTITY):
        fields |= {"gain": True, "bias": True, "factor": 0.625}
    if kind is NormKind.FIXED_SCALE:
        fields["position_scales"] = [2.5, 1.25]
    module = make_norm(NormSpec.of(fields, WIDTH))
    lens = open_model(with_norm(redrawn(module)), tokenizer=None, dtype=dtype)
    site = lens.sites[1]
    assert site.spec.kind is kind and lens.verification[1].passed
    assert site.spec.factor == fields.get("factor", 1.0)
    gamma, _ = gain_and_bias(lens, site)
    assert gamma is None or gamma.shape == (WIDTH,)


def redrawn(module: nn.Module) -> nn.Module:
    """The module with other running statistics."""
    for name, buffer in module.named_buffers():
        if "running" in name:
            buffer.copy_(torch.linspace(0.5, 2, WIDTH))
    return module


def test_a_class_that_nobody_described_is_opaque() -> None:
    lens = open_model(with_norm(PowerNorm(WIDTH)), tokenizer=None)
    assert lens.sites[1].spec == NormSpec(NormKind.OPAQUE, WIDTH)


@pytest.mark.parametrize("norm", [PowerNorm(WIDTH), SubclassedNorm(WIDTH)], ids=["own", "base"])
def test_a_true_description_is_verified(norm: PowerNorm) -> None:
    model = with_norm(norm)
    lens = open_model(model, tokenizer=None, norm_classes=OWN)
    assert lens.sites[1].spec == describe(norm)
    assert lens.verification[1].passed and lens.verification[1].residual < 1e-6
    # Nothing is remembered: without the description it is unknown again.
    assert open_model(model, tokenizer=None).sites[1].spec.kind is NormKind.OPAQUE


def test_a_false_description_is_not_believed() -> None:
    model = with_norm(PowerNorm(WIDTH, power=0.4))
    lens = open_model(model, tokenizer=None, norm_classes=OWN)
    assert lens.sites[1].spec == NormSpec(NormKind.OPAQUE, WIDTH)
    assert lens.verification[1].residual > 1e-2


def test_a_description_of_another_width_is_not_believed() -> None:
    narrow: NormClasses = {PowerNorm: lambda module: replace(describe(module), width=7)}
    lens = open_model(with_norm(PowerNorm(WIDTH)), tokenizer=None, norm_classes=narrow)
    assert lens.sites[1].spec == NormSpec(NormKind.OPAQUE, WIDTH)


def test_a_class_of_ones_own_counts_as_a_norm_where_no_rule_names_it() -> None:
    model = tiny_gpt2()
    model.transformer.h[1].mlp.extra = PowerNorm(WIDTH)
    assert open_model(model, tokenizer=None).sites
    with pytest.raises(LoadError, match=r"PowerNorm at transformer\.h\.1\.mlp\.extra"):
        open_model(model, tokenizer=None, norm_classes=OWN)


def test_a_description_may_overrule_a_known_class() -> None:
    """A LayerNorm described as something it is not becomes opaque, not silently a LayerNorm."""
    wrong: NormClasses = {nn.LayerNorm: lambda _: NormSpec(NormKind.IDENTITY, WIDTH)}
    lens = open_model(tiny_gpt2(), tokenizer=None, norm_classes=wrong)
    assert {site.spec.kind for site in lens.sites} == {NormKind.OPAQUE}


def test_a_description_outlives_the_conversion_of_other_norms() -> None:
    model = tiny_gpt2(layer_norm_epsilon=1e12)
    for name, parameter in model.named_parameters():
        if ".ln_" in name and name.endswith("weight"):
            parameter.data.mul_(1e6)
    model.transformer.ln_f = PowerNorm(WIDTH)
    options = {"tokenizer": None, "dtype": "float16", "convert": True, "norm_classes": OWN}
    kinds = {site.label: site.spec.kind for site in open_model(model, **options).sites}
    assert kinds["final"] is NormKind.RMS_NORM and kinds["0.pre_attn"] is NormKind.FIXED_SCALE
