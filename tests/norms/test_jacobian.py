"""Derivatives of the reference against autograd, and the directions that norms annihilate."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from normlens.models.parameters import module_gain_and_bias
from normlens.norms import (
    NormKind,
    NormSpec,
    annihilated,
    apply_norm,
    jacobian_vector_product,
    make_norm,
)
from tests.norms.specs import (
    EPS,
    FIXED,
    L2_NORM,
    LAYER_NORM,
    RMS_NORM,
    VARIANTS,
    WIDTH,
    Output,
    randomised,
)

FIXED_UNCENTRED = dataclasses.replace(FIXED, centred=False)
every_variant = pytest.mark.parametrize("spec", VARIANTS.values(), ids=list(VARIANTS))


@pytest.mark.kind_cell("reference")
# torch 2.13 scripts its own decompositions at the first forward-mode derivative.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@every_variant
def test_jacobian_equals_forward_mode_differentiation(spec: NormSpec, x: Tensor) -> None:
    module = randomised(make_norm(spec)).double()
    gamma, beta = module_gain_and_bias(module, spec)
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 0.5
    got = jacobian_vector_product(spec, x, v, gamma)
    _, expected = torch.func.jvp(Output(spec, gamma, beta), (x,), (v,))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    # The module's own derivative too: what training follows.
    _, expected = torch.autograd.functional.jvp(module, x, v)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.kind_cell("reference")
@every_variant
def test_annihilated_directions_are_annihilated(spec: NormSpec, x: Tensor) -> None:
    directions = annihilated(spec, x)
    count = spec.centred + spec.kind.has_live_scale
    assert directions.shape == (3, 5, count, WIDTH)
    scale = apply_norm(spec, x, None, None).scale
    generator = torch.Generator().manual_seed(4)
    other = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    survives = jacobian_vector_product(spec, x, other / other.norm(dim=-1, keepdim=True), None)
    assert survives.norm(dim=-1).min() > 1e-2
    for i in range(count):
        d = directions[..., i, :]
        torch.testing.assert_close(d.norm(dim=-1), torch.ones(3, 5).double())
        image = jacobian_vector_product(spec, x, d, None).norm(dim=-1)
        exact = (i == 0 and spec.centred) or spec.kind in (NormKind.L2_NORM, NormKind.SCALE_NORM)
        if exact:
            assert image.max() < 1e-12
            continue
        assert scale is not None
        left = EPS / (scale if spec.kind is NormKind.L1_NORM else scale.square()) / scale
        torch.testing.assert_close(image, left[..., 0] * spec.factor, rtol=1e-8, atol=1e-12)


def test_a_wrong_direction_survives(x: Tensor, gamma: Tensor) -> None:
    ones = torch.ones_like(x)
    assert jacobian_vector_product(LAYER_NORM, x, ones, gamma).abs().max() < 1e-12
    assert jacobian_vector_product(RMS_NORM, x, ones, gamma).abs().max() > 1e-2
    assert jacobian_vector_product(LAYER_NORM, x, x + 1, gamma).abs().max() < 1.0
    assert jacobian_vector_product(FIXED_UNCENTRED, x, x, None).equal(x / 1.75)


def test_a_clamped_length_is_constant(x: Tensor) -> None:
    tiny = x * 1e-5
    torch.testing.assert_close(apply_norm(L2_NORM, tiny, None, None).y, tiny / EPS)
    torch.testing.assert_close(jacobian_vector_product(L2_NORM, tiny, x, None), x / EPS)


def test_a_constant_input_has_no_direction_of_its_own() -> None:
    directions = annihilated(LAYER_NORM, torch.full((WIDTH,), 2.5))
    assert directions[1].tolist() == [0.0] * WIDTH
    assert directions[0].norm().item() == pytest.approx(1)
