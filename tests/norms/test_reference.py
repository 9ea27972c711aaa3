"""The float64 reference against torch's own norms and the closed forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from normlens.models.parameters import module_gain_and_bias
from normlens.norms import (
    NormKind,
    NormSpec,
    apply_norm,
    make_norm,
    scale_from_mean_square,
    scale_of,
)
from tests.norms.specs import (
    CRMS_NORM,
    DYT,
    ELN,
    EPS,
    FIXED,
    IDENTITY,
    L1_NORM,
    L2_NORM,
    LAYER_NORM,
    RMS_NORM,
    SCALE_NORM,
    SIMPLE,
    VARIANTS,
    WIDTH,
    Output,
    randomised,
)
from tests.oracles import norm as oracle

every_variant = pytest.mark.parametrize("spec", VARIANTS.values(), ids=list(VARIANTS))


def output(spec: NormSpec, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return apply_norm(spec, x, gamma if spec.gain else None, beta if spec.bias else None).y


@pytest.mark.kind_cell("reference")
@every_variant
def test_equals_the_module(spec: NormSpec, x: Tensor) -> None:
    module = randomised(make_norm(spec)).double()
    expected = Output(spec, *module_gain_and_bias(module, spec))(x)
    torch.testing.assert_close(module(x), expected, rtol=1e-12, atol=1e-12)


def test_equals_torch_and_gemma(x: Tensor, gamma: Tensor, beta: Tensor) -> None:
    small = 0.02 * x
    layer_norm = functional.layer_norm(small, (WIDTH,), gamma, beta, EPS)
    torch.testing.assert_close(output(LAYER_NORM, small, gamma, beta), layer_norm)
    rms_norm = functional.rms_norm(small, (WIDTH,), gamma, EPS)
    torch.testing.assert_close(output(RMS_NORM, small, gamma, beta), rms_norm)
    torch.testing.assert_close(
        output(SIMPLE, small, gamma, beta), functional.rms_norm(small, (WIDTH,), None, EPS)
    )
    torch.testing.assert_close(output(L2_NORM, x, gamma, beta), functional.normalize(x, dim=-1))
    gemma = GemmaRMSNorm(WIDTH, EPS)
    gemma.weight.data = gamma.float()
    offset = dataclasses.replace(RMS_NORM, unit_offset=True)
    ours = make_norm(offset)
    ours.load_state_dict({"weight": gamma})
    torch.testing.assert_close(ours(small.float()), gemma(small.float()))


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
    expected = output(spec, small, gamma, beta)
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
    assert apply_norm(FIXED, x, None, None).scale.unique().tolist() == [1.75]
    assert apply_norm(IDENTITY, x, None, None).scale.unique().tolist() == [1.0]


def test_a_scale_by_position_takes_the_last_one_from_there_on(x: Tensor) -> None:
    spec = VARIANTS["fixed_scale by position"]
    scale = apply_norm(spec, x, None, None).scale
    assert scale.shape == (3, 5, 1)
    assert scale[1, :, 0].tolist() == [3.5, 0.75, 1.25, 1.25, 1.25]
    with pytest.raises(ValueError, match="position"):
        scale_from_mean_square(spec, x)
    with pytest.raises(ValueError, match="pos, width"):
        apply_norm(spec, x[0, 0], None, None)


@every_variant
def test_a_quadratic_scale_follows_from_the_mean_square(spec: NormSpec, x: Tensor) -> None:
    centred = apply_norm(spec, x, None, None).centred
    mean_square = centred.square().mean(-1, keepdim=True)
    if spec.kind.quadratic and spec.position_scales is None:
        torch.testing.assert_close(
            scale_from_mean_square(spec, mean_square), scale_of(spec, centred)
        )
    else:
        with pytest.raises(ValueError, match="scale"):
            scale_from_mean_square(spec, mean_square)


@pytest.mark.kind_cell("reference")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (LAYER_NORM, lambda v: oracle.norm(v, [1] * 7, [0] * 7, centred=True, eps=EPS)),
        (SIMPLE, lambda v: oracle.norm(v, [1] * 7, [0] * 7, centred=False, eps=EPS)),
        (CRMS_NORM, lambda v: oracle.compressed(v, eps=EPS)),
        (SCALE_NORM, lambda v: oracle.unit_length(v, eps=EPS)),
        (L2_NORM, lambda v: oracle.unit_length(v, eps=EPS)),
        (L1_NORM, lambda v: oracle.absolute(v, centred=True, eps=EPS)),
        (
            dataclasses.replace(L1_NORM, centred=False),
            lambda v: oracle.absolute(v, centred=False, eps=EPS),
        ),
        (DYT, lambda v: oracle.dyt(v, [1] * 7, [0] * 7, alpha=0.6875)),
        (ELN, lambda v: oracle.inverse_square_root(v, constant=7 / 1.375**2)),
    ],
    ids=lambda value: value.kind.value if isinstance(value, NormSpec) else "",
)
@pytest.mark.parametrize("size", [1.0, 1e-4], ids=["large", "as small as eps"])
def test_equals_the_formula(
    spec: NormSpec, expected: Callable[[list[float]], list[float]], size: float, x: Tensor
) -> None:
    vector = size * x[1, 2]
    got = apply_norm(spec, vector, None, None).xhat.tolist()
    assert got == pytest.approx(expected(vector.tolist()), rel=1e-10)


def test_opaque_has_no_output(x: Tensor) -> None:
    with pytest.raises(ValueError, match="opaque"):
        apply_norm(NormSpec(NormKind.OPAQUE, WIDTH), x, None, None)


def test_another_width_is_refused(x: Tensor) -> None:
    with pytest.raises(ValueError, match="width 6"):
        apply_norm(LAYER_NORM, x[..., :6], None, None)


def test_kinds_know_their_nature() -> None:
    batch = [NormKind.BATCH_NORM, NormKind.POWER_NORM, NormKind.UNIFIED_NORM]
    constant = [NormKind.FIXED_SCALE, NormKind.IDENTITY]
    curved = [NormKind.DYT, NormKind.ELN]
    assert [kind for kind in NormKind if kind.linear] == [*batch, *constant]
    assert [kind for kind in NormKind if not kind.has_scale] == [*curved, NormKind.OPAQUE]
    assert [k for k in NormKind if k.elementwise] == [*batch, *curved, NormKind.IDENTITY]
    assert [kind for kind in NormKind if kind.batch_coupled] == batch
    unquadratic = [k for k in NormKind if k.has_scale and not k.quadratic]
    assert unquadratic == [NormKind.CRMS_NORM, NormKind.L1_NORM]
    assert [kind for kind in NormKind if kind.has_live_scale] == [
        k for k in NormKind if k.has_scale and not k.linear
    ]


def test_elementwise_kinds_have_no_scale(x: Tensor) -> None:
    assert apply_norm(DYT, x, None, None).scale is None
    with pytest.raises(ValueError, match="dyt has no known scale"):
        scale_of(DYT, x)
    with pytest.raises(ValueError, match="alpha"):
        apply_norm(dataclasses.replace(ELN, alpha=None), x, None, None)


def outlier(growth: float) -> tuple[Tensor, int, Tensor]:
    """100 numbers of deviation 2, the largest grown; its index, and the other numbers."""
    values = torch.from_numpy(np.random.RandomState(1).normal(0, 2, 100))
    index = int(values.argmax())
    values[index] += growth
    return values, index, torch.cat([values[:index], values[index + 1 :]])


@pytest.mark.parametrize(
    ("growth", "published"), [(0, 2.4007), (5, 4.7155), (10, 6.3446), (45, 9.3904)]
)
def test_eln_is_what_layer_norm_does_to_an_outlier(growth: float, published: float) -> None:
    """Centred, bounded by sqrt(C - 1), with the other elements' squares as its constant."""
    values, index, others = outlier(growth)
    layer_norm = NormSpec(NormKind.LAYER_NORM, 100, eps=0.0, centred=True)
    y = apply_norm(layer_norm, values, None, None).y[index].item()
    assert y == pytest.approx(published, abs=5e-5)
    constant = (others - others.mean()).square().sum().item() * 100 / 99
    eln = NormSpec(NormKind.ELN, 99, alpha=(99 / constant) ** 0.5)
    inputs = (values[index] - others.mean()).repeat(99)
    assert apply_norm(eln, inputs, None, None).y[0].item() == pytest.approx(y, rel=1e-12)
    # Uncentred, it is RMSNorm exactly, and a constant of another sample is not.
    rms = apply_norm(NormSpec(NormKind.RMS_NORM, 100, eps=0.0), values, None, None).y[index]
    square = others.square().sum().item()
    for factor, close in ((1.0, True), (1.1, False)):
        eln = NormSpec(NormKind.ELN, 100, alpha=(100 / (factor * square)) ** 0.5)
        got = apply_norm(eln, values, None, None).y[index].item()
        assert (got == pytest.approx(rms.item(), rel=1e-12)) is close
