from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from normlens.capture.protocol import Components, ComponentWeights
from normlens.kernels.direct_effect import DirectEffects, direct_effects
from normlens.kernels.readout import VOCABULARY_MEAN, read_from_logits, read_logits
from normlens.models.components_scaling import Scaling
from normlens.models.components_view import PostAttention
from normlens.models.lens import NormSite, Role
from normlens.norms.spec import NormKind, NormSpec
from tests.kernels.attribution_models import (
    MODELS,
    SCALE_FREE,
    lens_of,
    observe,
    vectors,
    weights_of,
)
from tests.oracles import direct_effect as oracle

BATCH, POSITIONS, HEADS, D_HEAD, WIDTH, VOCAB, LAYERS = 2, 5, 3, 4, 12, 29, 2

SPECS = {
    "layer_norm": NormSpec(
        NormKind.LAYER_NORM, WIDTH, eps=3e-4, centred=True, gain=True, bias=True
    ),
    "layer_norm_large_eps": NormSpec(
        NormKind.LAYER_NORM, WIDTH, eps=0.7, centred=True, gain=True, bias=True
    ),
    "layer_norm_plain": NormSpec(NormKind.LAYER_NORM, WIDTH, eps=3e-4, centred=True),
    "rms_norm": NormSpec(NormKind.RMS_NORM, WIDTH, eps=3e-4, gain=True),
    "fixed_scale": NormSpec(
        NormKind.FIXED_SCALE, WIDTH, centred=True, gain=True, bias=True, fixed_scale=1.7
    ),
    "eps_encoded": NormSpec(
        NormKind.FIXED_SCALE, WIDTH, eps=1e12, centred=True, gain=True, bias=True,
        fixed_scale=1e6, eps_encoded=True,
    ),
    "identity": NormSpec(NormKind.IDENTITY, WIDTH),
}  # fmt: skip


def random_case(
    spec: NormSpec, dtype: torch.dtype, seed: int = 0
) -> tuple[Components, ComponentWeights, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    gain = 1e6 if spec.eps_encoded else 1.0
    weights = ComponentWeights(
        w_o=[draw(HEADS, D_HEAD, WIDTH) for _ in range(LAYERS)],
        b_o=[draw(WIDTH) + 0.3, None],
        w_u=draw(WIDTH, VOCAB) + 0.4,
        b_u=draw(VOCAB),
        gamma=gain * (1 + 0.4 * draw(WIDTH)) if spec.gain else None,
        beta=draw(WIDTH) if spec.bias else None,
        final=NormSite(None, Role.FINAL, 0, "final", ("head",), spec),
    )
    components = Components(
        {name: draw(BATCH, POSITIONS, WIDTH) + 0.5 for name in ("embed", "pos_embed")},
        [draw(BATCH, POSITIONS, HEADS * D_HEAD) - 0.2 for _ in range(LAYERS)],
        [2 * draw(BATCH, POSITIONS, WIDTH) for _ in range(LAYERS)],
        torch.zeros(BATCH, POSITIONS, WIDTH, dtype=torch.float64),
    )
    residual = torch.stack(list(vectors(components, weights).values())).sum(0)
    targets = torch.randint(VOCAB, (BATCH, POSITIONS), generator=generator)
    cast = Components(
        {name: value.to(dtype) for name, value in components.embeddings.items()},
        [value.to(dtype) for value in components.z],
        [value.to(dtype) for value in components.mlp],
        residual.to(dtype),
    )
    return cast, weights_to(weights, dtype), targets


def weights_to(weights: ComponentWeights, dtype: torch.dtype) -> ComponentWeights:
    return replace(
        weights,
        w_o=[w.to(dtype) for w in weights.w_o],
        b_o=[None if b is None else b.to(dtype) for b in weights.b_o],
        w_u=weights.w_u.to(dtype),
        b_u=None if weights.b_u is None else weights.b_u.to(dtype),
    )


def oracle_norm(weights: ComponentWeights) -> oracle.Norm:
    spec = weights.final.spec
    constant = spec.fixed_scale or 1.0
    return oracle.Norm(spec.kind.value, spec.eps or 0.0, constant, weights.gamma, weights.beta)


def oracle_effects(
    components: Components, weights: ComponentWeights, targets: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    b_u = None if weights.b_u is None else weights.b_u.double()
    return {
        name: oracle.effects(
            c,
            components.residual.double(),
            oracle_norm(weights),
            weights.w_u.double(),
            b_u,
            targets,
        )
        for name, c in vectors(components, weights).items()
    }


def model_logits(components: Components, weights: ComponentWeights) -> Tensor:
    logits = oracle_norm(weights)(components.residual.double()) @ weights.w_u.double()
    return logits if weights.b_u is None else logits + weights.b_u.double()


def kernel(components: Components, weights: ComponentWeights, targets: Tensor) -> DirectEffects:
    return direct_effects(components, weights, read_logits(weights, targets))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SPECS)
def test_equals_removing_each_component(name: str, dtype: torch.dtype) -> None:
    components, weights, targets = random_case(SPECS[name], dtype)
    effects = kernel(components, weights, targets)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5
    expected = oracle_effects(components, weights, targets)
    assert [c.name for c in effects.components] == list(expected)
    for i, (dla, effect) in enumerate(expected.values()):
        torch.testing.assert_close(effects.dla[i], dla, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(effects.effect[i], effect, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("after", ["layer_norm", "rms_norm"])
def test_a_norm_after_attention_and_a_branch_scale_are_in_every_head(
    after: str, dtype: torch.dtype
) -> None:
    """Layer 0 has an output bias, layer 1 has none; the norm after layer 1 alone has none."""
    components, weights, targets = random_case(SPECS["layer_norm"], dtype, seed=3)
    generator = torch.Generator().manual_seed(8)
    gain, bias = (torch.randn(WIDTH, generator=generator).double() for _ in range(2))
    beta = bias if SPECS[after].bias else None
    weights = replace(
        weights,
        post_attention={0: PostAttention(SPECS[after], 1 + 0.4 * gain, beta)},
        scaling=Scaling(branch=0.3),
    )
    z = components.z[0].unflatten(-1, (HEADS, D_HEAD))
    b_o = weights.b_o[0]
    assert b_o is not None
    attention = torch.einsum("bphd,hdm->bpm", z, weights.w_o[0]) + b_o
    scale = weights.post_attention[0].scale(attention)
    residual = torch.stack(list(vectors(components, weights).values())).sum(0)
    components = replace(components, attention_scale={0: scale}, residual=residual.to(dtype))
    effects = kernel(components, weights, targets)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5
    expected = oracle_effects(components, weights, targets)
    assert [c.name for c in effects.components] == list(expected)
    for i, (dla, effect) in enumerate(expected.values()):
        torch.testing.assert_close(effects.dla[i], dla, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(effects.effect[i], effect, rtol=tolerance, atol=tolerance)
    logit = read_from_logits(model_logits(components, weights), targets)
    assert effects.discrepancy(logit).max() < tolerance
    without = kernel(components, replace(weights, scaling=Scaling()), targets)
    assert without.discrepancy(logit).max() > 1e-2


def test_half_precision_is_computed_in_float32() -> None:
    components, weights, targets = random_case(SPECS["layer_norm"], torch.bfloat16)
    effects = kernel(components, weights, targets)
    for i, (dla, _) in enumerate(oracle_effects(components, weights, targets).values()):
        torch.testing.assert_close(effects.dla[i], dla, rtol=1e-4, atol=1e-4)


def test_two_components_by_hand() -> None:
    """RMSNorm, r = (3, 4): what is written along (0, 1) is read through the scale alone."""
    spec = NormSpec(NormKind.RMS_NORM, 2, eps=0.0)
    weights = ComponentWeights(
        w_o=[torch.tensor([[[1.0, 0.0]]])],
        b_o=[None],
        w_u=torch.tensor([[2.0, 0.0], [5.0, 5.0]]),
        b_u=None,
        gamma=None,
        beta=None,
        final=NormSite(None, Role.FINAL, 0, "final", (), spec),
    )
    components = Components(
        {"embed": torch.tensor([[[0.0, 4.0]]])},
        [torch.tensor([[[3.0]]])],
        [torch.zeros(1, 1, 2)],
        torch.tensor([[[3.0, 4.0]]]),
    )
    effects = kernel(components, weights, torch.tensor([[0]]))
    intact = 3 / math.sqrt(12.5)
    assert [c.name for c in effects.components] == ["embed", "L0.H0", "L0.mlp"]
    assert effects.dla.flatten().tolist() == pytest.approx([0.0, intact, 0.0])
    assert effects.effect.flatten().tolist() == pytest.approx(
        [intact - 3 / math.sqrt(4.5), intact, 0.0]
    )
    assert float(effects.scale) == pytest.approx(math.sqrt(12.5))


@pytest.mark.parametrize("name", SPECS)
def test_direct_effect_equals_dla_iff_the_scale_is_fixed(name: str) -> None:
    effects = kernel(*random_case(SPECS[name], torch.float32))
    if SPECS[name].kind.has_live_scale:
        assert effects.repair.abs().max() > 1e-2
    else:
        assert torch.equal(effects.effect, effects.dla)


@pytest.mark.parametrize("name", SPECS)
def test_reads_differences_of_logits_beside_centred_ones(name: str) -> None:
    components, weights, targets = random_case(SPECS[name], torch.float64)
    references = torch.full_like(targets, VOCABULARY_MEAN)
    references[0, 2:] = 7
    effects = direct_effects(components, weights, read_logits(weights, targets, references))
    logits = model_logits(components, weights)
    wanted = logits.gather(-1, targets[..., None])[..., 0] - logits.mean(-1)
    wanted[0, 2:] += logits[0, 2:].mean(-1) - logits[0, 2:, 7]
    torch.testing.assert_close(effects.total, wanted)
    torch.testing.assert_close(read_from_logits(logits, targets, references), wanted)
    assert effects.discrepancy(wanted).max() < 1e-10
    assert effects.discrepancy(wanted + 0.1).min() > 1e-4


@pytest.mark.parametrize("name", ["layer_norm", "layer_norm_large_eps", "rms_norm"])
def test_gradients_conserve_with_the_scale_detached_alone(name: str) -> None:
    """sum_c c.dL/dr is L less its constants, times eps/(ms + eps) if the scale is live."""
    components, weights, targets = random_case(SPECS[name], torch.float64)
    effects = kernel(components, weights, targets)
    read = effects.dla.sum(0)
    norm = replace(oracle_norm(weights), beta=None)
    residual = components.residual.clone().requires_grad_()
    oracle.centred_logit(norm(residual), weights.w_u, None, targets).sum().backward()
    assert residual.grad is not None
    eps = SPECS[name].eps or 0.0
    live = (residual.grad * components.residual).sum(-1)
    torch.testing.assert_close(live, read * eps / effects.scale.square())
    residual = components.residual.clone().requires_grad_()
    scale = norm.scale(residual).detach()
    oracle.centred_logit(norm.frozen(residual, scale), weights.w_u, None, targets).sum().backward()
    assert residual.grad is not None
    for i, c in enumerate(vectors(components, weights).values()):
        torch.testing.assert_close((residual.grad * c).sum(-1), effects.dla[i])


def test_a_component_that_is_the_whole_residual_leaves_no_negative_variance() -> None:
    components, weights, targets = random_case(SPECS["layer_norm"], torch.float32)
    whole = replace(components, embeddings={"embed": components.residual})
    effects = kernel(whole, weights, targets)
    torch.testing.assert_close(effects.effect[0], effects.dla[0], rtol=1e-3, atol=1e-3)
    assert effects.effect.isfinite().all()


IDS = torch.randint(1, 4096, (2, 12), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_contributions_add_up_to_the_logits_of_a_model(name: str, dtype: torch.dtype) -> None:
    model = MODELS[name]()
    lens = lens_of(model.double() if dtype == torch.float64 else model)
    weights, observed = weights_of(lens), observe(lens, IDS)
    assert observed.components is not None and observed.logits is not None
    targets = IDS.roll(-1, 1)
    effects = kernel(observed.components, weights, targets)
    logit = read_from_logits(observed.logits, targets)
    # Llama's norm computes in float32 whatever the model's dtype.
    exact = dtype == torch.float64 and weights.final.spec.compute_dtype == "input"
    tolerance = 1e-10 if exact else 1e-5
    assert effects.discrepancy(logit).max() <= tolerance
    assert weights.final.spec.kind.has_live_scale == (name not in SCALE_FREE)

    naive = replace(weights, gamma=None, final=uncentred(weights))
    spoilt = kernel(observed.components, naive, targets).discrepancy(logit)
    if name != "identity":
        assert spoilt.max() > 1e-2


def uncentred(weights: ComponentWeights) -> NormSite:
    return replace(weights.final, spec=replace(weights.final.spec, centred=False))


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("lost", ["beta", "b_o", "pos_embed", "mlp"])
def test_a_lost_term_breaks_conservation(name: str, lost: str) -> None:
    components, weights, targets = random_case(SPECS[name], torch.float32)
    logit = read_from_logits(model_logits(components, weights), targets)
    assert kernel(components, weights, targets).discrepancy(logit).max() < 1e-5
    match lost:
        case "beta" if weights.beta is None:
            weights = replace(weights, b_u=None)
        case "beta":
            weights = replace(weights, beta=None)
        case "b_o":
            weights = replace(weights, b_o=[None, None])
        case "pos_embed":
            components = replace(components, embeddings={"embed": components.embeddings["embed"]})
        case _:
            components = replace(components, mlp=[torch.zeros_like(m) for m in components.mlp])
    assert kernel(components, weights, targets).discrepancy(logit).max() > 1e-2


class Largest(TorchDispatchMode):
    """Number of elements of the largest tensor made."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            self.numel = max(self.numel, out.numel())
        return out


def test_makes_no_tensor_over_heads_and_d_model_or_over_the_vocabulary() -> None:
    lens = lens_of(MODELS["layer_norm"]())
    ids = IDS.repeat(8, 1)
    weights, observed = weights_of(lens), observe(lens, ids)
    assert observed.components is not None and observed.logits is not None
    with Largest() as largest:
        kernel(observed.components, weights, ids)
    tokens, width = ids.numel(), weights.w_u.shape[0]
    assert tokens * width <= largest.numel < 2 * tokens * width
    with Largest() as largest:
        vectors(observed.components, weights)
        _logits = observed.components.residual @ weights.w_u
    assert largest.numel == tokens * weights.w_u.shape[1]
