"""Norm modules: state dicts, dtypes, parameters, factors, and specs read back."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from normlens.errors import UsageError
from normlens.norms import (
    ELN,
    KINDS,
    Coupling,
    DyT,
    FixedScale,
    NormKind,
    NormModule,
    NormSpec,
    ScaledNorm,
    make_norm,
)
from tests.norms.specs import (
    LAYER_NORM,
    RMS_NORM,
    SCALE_NORM,
    VARIANTS,
    WIDTH,
    randomised,
)

every_variant = pytest.mark.parametrize("spec", VARIANTS.values(), ids=list(VARIANTS))


@pytest.fixture
def x() -> Tensor:
    return 0.8 + torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.kind_cell("module")
@every_variant
def test_a_state_dict_is_all_there_is(spec: NormSpec, x: Tensor) -> None:
    module = randomised(make_norm(spec))
    fresh = make_norm(spec).eval()
    trained = bool(module.state_dict()) and spec.kind is not NormKind.DYT
    if trained and dict(module.named_parameters()):
        assert not fresh(x).equal(module(x))
    fresh.load_state_dict(module.state_dict())
    assert fresh(x).equal(module(x))
    own = {name.removeprefix("norm.") for name, _ in module.named_parameters()}
    wanted = {"weight": spec.gain, "bias": spec.bias, "alpha": spec.alpha is not None}
    assert own == {name for name, there in wanted.items() if there}


@pytest.mark.kind_cell("module")
@every_variant
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_answers_in_the_dtype_of_the_input(spec: NormSpec, dtype: torch.dtype, x: Tensor) -> None:
    module = randomised(make_norm(spec)).to(dtype)
    y = module(x.to(dtype))
    assert y.dtype is dtype
    wide = randomised(make_norm(spec)).to(dtype).double()(x.to(dtype).double())
    rounding = torch.finfo(dtype).eps * wide.abs().max()
    assert (y.double() - wide).abs().max() <= 4 * rounding


@pytest.mark.parametrize("kind", [k for k in KINDS if k.has_live_scale], ids=str)
def test_computes_in_float32_or_wider(kind: NormKind) -> None:
    """Squares of 300 overflow float16."""
    spec = NormSpec.of({"kind": kind.value}, WIDTH)
    x = torch.full((1, WIDTH), 300.0)
    x[0, 0] = -300.0
    y = make_norm(spec)(x.half())
    assert y.isfinite().all() and y.abs().max() > 0.1


def test_a_new_norm_starts_at_gain_one() -> None:
    assert make_norm(LAYER_NORM).weight.tolist() == [1.0] * WIDTH
    offset = make_norm(dataclasses.replace(RMS_NORM, unit_offset=True))
    assert offset.weight.tolist() == [0.0] * WIDTH
    assert make_norm(SCALE_NORM).weight.item() == pytest.approx(WIDTH**0.5)


def test_torch_has_the_common_forms() -> None:
    assert type(make_norm(LAYER_NORM)) is nn.LayerNorm
    assert type(make_norm(RMS_NORM)) is nn.RMSNorm
    assert type(make_norm(VARIANTS["identity"])) is nn.Identity
    assert isinstance(make_norm(VARIANTS["rms_norm bias"]), NormModule)


def test_a_factor_scales_gain_and_bias_alike(x: Tensor) -> None:
    spec = VARIANTS["layer_norm scaled"]
    module = randomised(make_norm(spec))
    assert isinstance(module, ScaledNorm) and module.spec == spec
    torch.testing.assert_close(module(x), 0.625 * module.norm(x))
    assert module.get_parameter("weight") is module.norm.weight
    assert "factor=0.625" in repr(module)
    with pytest.raises(ValueError, match="Linear"):
        ScaledNorm(nn.Linear(2, 2), 0.5)


def test_a_spec_follows_trained_constants() -> None:
    for module in (DyT(WIDTH, 0.5), ELN(WIDTH, 0.5)):
        module.alpha.data.fill_(0.75)
        assert module.spec.alpha == 0.75
    fixed = FixedScale(WIDTH, (1.0, 2.0))
    fixed.load_state_dict({**fixed.state_dict(), "scale": torch.tensor([3.0, 4.0])})
    assert fixed.spec.position_scales == (3.0, 4.0)
    with torch.device("meta"):
        assert ELN(WIDTH, 0.5).spec.alpha == 0.5
        assert FixedScale(WIDTH, 2.0).spec.fixed_scale == 2.0


@pytest.mark.parametrize("kind", [NormKind.DYT, NormKind.ELN], ids=str)
def test_the_slope_is_trained(kind: NormKind, x: Tensor) -> None:
    module = make_norm(NormSpec.of({"kind": kind.value}, WIDTH))
    module(x).square().sum().backward()
    assert module.get_parameter("alpha").grad.abs() > 1e-3


def test_an_eps_encoded_scale_is_a_live_norm_with_that_eps(x: Tensor) -> None:
    spec = NormSpec(
        NormKind.FIXED_SCALE,
        WIDTH,
        eps=1e12,
        centred=True,
        gain=True,
        bias=True,
        fixed_scale=1e6,
        eps_encoded=True,
    )
    module = make_norm(spec)
    assert type(module) is nn.LayerNorm and module.eps == 1e12
    module.weight.data.fill_(1e6)
    torch.testing.assert_close(module(x), x - x.mean(-1, keepdim=True))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (NormSpec(NormKind.OPAQUE, 4), "kind"),
        (NormSpec(NormKind.LAYER_NORM, 4, centred=True), "eps"),
        (NormSpec(NormKind.RMS_NORM, 4, eps=1e-6, centred=True), "centred"),
        (NormSpec(NormKind.DYT, 4), "alpha"),
        (NormSpec(NormKind.FIXED_SCALE, 4), "fixed_scale"),
        (NormSpec(NormKind.IDENTITY, 4, gain=True), "gain"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_built_is_refused(spec: NormSpec, field: str) -> None:
    with pytest.raises(UsageError, match=f"field {field} of a norm"):
        make_norm(spec)


def test_every_kind_but_opaque_has_its_facts() -> None:
    assert list(KINDS) == [kind for kind in NormKind if kind is not NormKind.OPAQUE]
    assert {spec.kind for spec in VARIANTS.values()} == set(KINDS)
    for kind, row in KINDS.items():
        assert row.kind is kind
        assert all((row.title, row.formula, row.source, row.eps, row.annihilates))
        assert (row.couples is Coupling.TOKEN) == kind.has_live_scale
        assert (row.couples is Coupling.BATCH) == kind.batch_coupled
        assert (row.eps == "none") == (not kind.has_eps) or kind is NormKind.FIXED_SCALE
