"""The float64 reference against torch's own norms, autograd and the closed forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from normlens.norms import (
    DyT,
    FixedScale,
    NormKind,
    NormSpec,
    apply_norm,
    jacobian_vector_product,
    scale_of,
)
from tests.oracles import norm as oracle

WIDTH = 7
EPS = 3e-4

LAYER_NORM = NormSpec(NormKind.LAYER_NORM, WIDTH, eps=EPS, centred=True, gain=True, bias=True)
RMS_NORM = NormSpec(NormKind.RMS_NORM, WIDTH, eps=EPS, gain=True)
FIXED = NormSpec(NormKind.FIXED_SCALE, WIDTH, centred=True, gain=True, bias=True, fixed_scale=1.7)
FIXED_UNCENTRED = dataclasses.replace(FIXED, centred=False)
IDENTITY = NormSpec(NormKind.IDENTITY, WIDTH)
DYT = NormSpec(NormKind.DYT, WIDTH, gain=True, bias=True, alpha=0.7)
ALL = (LAYER_NORM, RMS_NORM, FIXED, FIXED_UNCENTRED, IDENTITY, DYT)


@pytest.fixture
def x() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 0.8 + 0.05 * torch.randn(3, 5, WIDTH, generator=generator, dtype=torch.float64)


@pytest.fixture
def gamma() -> Tensor:
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def beta() -> Tensor:
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def module_for(spec: NormSpec, gamma: Tensor, beta: Tensor) -> nn.Module:
    """torch's module of a spec, with these parameters."""
    if spec.kind is NormKind.LAYER_NORM:
        module: nn.Module = nn.LayerNorm(WIDTH, eps=EPS)
    elif spec.kind is NormKind.RMS_NORM:
        module = nn.RMSNorm(WIDTH, eps=EPS)
    elif spec.kind is NormKind.FIXED_SCALE:
        assert spec.fixed_scale is not None
        module = FixedScale(WIDTH, spec.fixed_scale, centred=spec.centred)
    elif spec.kind is NormKind.DYT:
        assert spec.alpha is not None
        module = DyT(WIDTH)
        module.alpha.data = torch.tensor(spec.alpha, dtype=torch.float64)
    else:
        return nn.Identity()
    module.double()
    state = {"weight": gamma, "bias": beta} if spec.bias else {"weight": gamma}
    module.load_state_dict(state, strict=False)
    if isinstance(module, FixedScale):
        module.scale = torch.tensor(spec.fixed_scale, dtype=torch.float64)
    return module


def output(spec: NormSpec, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return apply_norm(spec, x, gamma if spec.gain else None, beta if spec.bias else None).y


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.kind.value)
def test_equals_the_module(spec: NormSpec, x: Tensor, gamma: Tensor, beta: Tensor) -> None:
    expected = module_for(spec, gamma, beta)(x)
    torch.testing.assert_close(output(spec, x, gamma, beta), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda spec: dataclasses.replace(spec, eps=1e-5),
        lambda spec: dataclasses.replace(spec, centred=not spec.centred),
        lambda spec: dataclasses.replace(spec, gain=False),
    ],
    ids=["eps of the config", "mean ignored", "gain dropped"],
)
@pytest.mark.parametrize("spec", [LAYER_NORM, RMS_NORM], ids=lambda spec: spec.kind.value)
def test_a_wrong_spec_is_seen(
    spec: NormSpec,
    wrong: Callable[[NormSpec], NormSpec],
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
) -> None:
    small = 0.02 * x if spec.kind is NormKind.RMS_NORM else x
    expected = module_for(spec, gamma, beta)(small)
    assert (output(wrong(spec), small, gamma, beta) - expected).abs().max() > 1e-3


def test_llama_rms_norm_computes_in_float32(x: Tensor, gamma: Tensor) -> None:
    module = LlamaRMSNorm(WIDTH, eps=EPS)
    module.weight.data = gamma.float()
    expected = apply_norm(RMS_NORM, x.float(), gamma.float(), None).y
    torch.testing.assert_close(module(x.float()).double(), expected, rtol=1e-5, atol=1e-6)


def test_reads_any_float_dtype_and_answers_in_float64(x: Tensor) -> None:
    parts = apply_norm(LAYER_NORM, x.bfloat16(), None, None)
    assert {t.dtype for t in (parts.centred, parts.scale, parts.xhat, parts.y)} == {torch.float64}
    torch.testing.assert_close(parts.y, apply_norm(LAYER_NORM, x.bfloat16().double(), None, None).y)


def test_parts_are_the_steps(x: Tensor, gamma: Tensor, beta: Tensor) -> None:
    parts = apply_norm(LAYER_NORM, x, gamma, beta)
    torch.testing.assert_close(parts.centred, x - x.mean(-1, keepdim=True))
    torch.testing.assert_close(parts.scale, (x.var(-1, correction=0, keepdim=True) + EPS).sqrt())
    torch.testing.assert_close(parts.scale, scale_of(LAYER_NORM, parts.centred))
    torch.testing.assert_close(parts.xhat * gamma + beta, parts.y)


def test_scale_of_kinds_without_a_statistic_is_constant(x: Tensor) -> None:
    assert apply_norm(FIXED, x, None, None).scale.unique().tolist() == [1.7]
    assert apply_norm(IDENTITY, x, None, None).scale.unique().tolist() == [1.0]


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.kind.value)
def test_jacobian_equals_autograd(spec: NormSpec, x: Tensor, gamma: Tensor, beta: Tensor) -> None:
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 0.5
    _, expected = torch.autograd.functional.jvp(module_for(spec, gamma, beta), x, v)
    got = jacobian_vector_product(spec, x, v, gamma if spec.gain else None)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_layer_norm_annihilates_the_mean_direction(x: Tensor, gamma: Tensor) -> None:
    ones = torch.ones_like(x)
    assert jacobian_vector_product(LAYER_NORM, x, ones, gamma).abs().max() < 1e-12
    assert jacobian_vector_product(RMS_NORM, x, ones, gamma).abs().max() > 1e-2


def test_own_direction_survives_only_by_eps(x: Tensor) -> None:
    parts = apply_norm(RMS_NORM, x, None, None)
    got = jacobian_vector_product(RMS_NORM, x, x, None)
    torch.testing.assert_close(got, parts.xhat * EPS / parts.scale.square())
    fixed = jacobian_vector_product(FIXED_UNCENTRED, x, x, None)
    torch.testing.assert_close(fixed, x / 1.7)


def test_opaque_has_no_output(x: Tensor) -> None:
    with pytest.raises(ValueError, match="opaque"):
        apply_norm(NormSpec(NormKind.OPAQUE, WIDTH), x, None, None)


def test_another_width_is_refused(x: Tensor) -> None:
    with pytest.raises(ValueError, match="width 6"):
        apply_norm(LAYER_NORM, x[..., :6], None, None)


def test_kinds_know_their_nature() -> None:
    assert [kind for kind in NormKind if kind.linear] == [NormKind.FIXED_SCALE, NormKind.IDENTITY]
    live = [kind for kind in NormKind if kind.has_live_scale]
    assert live == [NormKind.LAYER_NORM, NormKind.RMS_NORM]
    assert [kind for kind in NormKind if not kind.has_scale] == [NormKind.DYT, NormKind.OPAQUE]
    assert [kind for kind in NormKind if kind.elementwise] == [NormKind.IDENTITY, NormKind.DYT]


def test_dynamic_tanh_has_no_scale(x: Tensor, gamma: Tensor, beta: Tensor) -> None:
    parts = apply_norm(DYT, x, gamma, beta)
    assert parts.scale is None
    with pytest.raises(ValueError, match="dyt has no known scale"):
        scale_of(DYT, x)
    with pytest.raises(ValueError, match="alpha"):
        apply_norm(dataclasses.replace(DYT, alpha=None), x, None, None)
    want = oracle.dyt(x[1, 2].tolist(), gamma.tolist(), beta.tolist(), alpha=0.7)
    assert parts.y[1, 2].tolist() == pytest.approx(want, rel=1e-12)


def test_dynamic_tanh_computes_in_float32_and_answers_in_its_input_dtype(x: Tensor) -> None:
    module = DyT(WIDTH, 0.7, bias=False).bfloat16()
    y = module(x.bfloat16())
    assert y.dtype is torch.bfloat16 and module.bias is None
    assert "alpha=0.69" in repr(module) or "alpha=0.7" in repr(module)
    expected = (x.bfloat16().float() * module.alpha.float()).tanh()
    torch.testing.assert_close(y, expected.bfloat16(), rtol=0, atol=0)
