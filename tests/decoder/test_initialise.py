"""Initial weights: the standard deviation of every linear, rule by rule; norms and factors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normlens.decoder import DecoderConfig, DecoderForCausalLM
from tests.decoder.tiny_decoders import L2_NORM, SMALL

WIDE: dict[str, Any] = {
    **SMALL,
    "vocab_size": 64,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "gated": True,
    "tie_word_embeddings": False,
    "initializer_range": 0.03,
}
READERS = ("q", "k", "v", "gate", "up")
L, D = 3, 96


def xavier(fan_in: int, fan_out: int, gain: float = 1.0) -> float:
    return gain * math.sqrt(2 / (fan_in + fan_out))


DEEP = (8 * L) ** -0.25

EXPECTED: dict[str, dict[str, float]] = {
    "normal": dict.fromkeys((*READERS, "o", "down"), 0.03),
    "gpt2": {**dict.fromkeys(READERS, 0.03), **dict.fromkeys(("o", "down"), 0.03 / math.sqrt(6))},
    "deepnorm": {
        "q": xavier(96, 96),
        "k": xavier(96, 48),
        "v": xavier(96, 48, DEEP),
        "o": xavier(96, 96, DEEP),
        "gate": xavier(96, 160, DEEP),
        "up": xavier(96, 160, DEEP),
        "down": xavier(160, 96, DEEP),
    },
    "depth_scaled": dict.fromkeys((*READERS, "o", "down"), 1 / math.sqrt(2 * D * L)),
    "fixup": {**dict.fromkeys(READERS, 0.03 / math.sqrt(6)), "o": 0.0, "down": 0.0},
}


def built(**fields: Any) -> Any:
    torch.manual_seed(1)
    return DecoderForCausalLM(DecoderConfig(**{**WIDE, **fields}))


def linears(model: nn.Module, name: str) -> list[Any]:
    return [m for path, m in model.named_modules() if path.endswith(f".{name}_proj")]


def weights(model: nn.Module, name: str) -> list[Tensor]:
    return [linear.weight.detach() for linear in linears(model, name)]


@pytest.mark.parametrize("rule", EXPECTED)
def test_standard_deviations(rule: str) -> None:
    model = built(initialisation=rule)
    for name, std in EXPECTED[rule].items():
        for weight in weights(model, name):
            # Four standard errors of the spread of as many numbers.
            spread = 4 / math.sqrt(2 * weight.numel())
            assert weight.std().item() == pytest.approx(std, rel=spread, abs=1e-12), name
            assert abs(weight.mean().item()) <= 4 * std / math.sqrt(weight.numel())
        for linear in linears(model, name):
            assert linear.get_parameter("bias").abs().max() == 0
    for table in (model.model.embed_tokens, model.model.embed_positions, model.lm_head):
        assert table.weight.std().item() == pytest.approx(0.03, rel=0.05)


def test_norms_and_factors_start_neutral() -> None:
    model = built(branch_scale=0.5, qk_temperature=3.0, placement="sandwich")
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert parameter.unique().tolist() == [float(name.endswith("weight"))]
    factors = {n: p.item() for n, p in model.named_parameters() if p.ndim == 0}
    assert set(factors.values()) == {0.5, 3.0} and len(factors) == 9


def test_depth_scaled_gains() -> None:
    model = built(placement="depth_scaled_sandwich")
    for name, parameter in model.named_parameters():
        if "norm.weight" in name:
            expected = L**-0.5 if "post_norm" in name else 1.0
            torch.testing.assert_close(parameter, torch.full_like(parameter, expected))


def test_fixup_starts_as_the_identity() -> None:
    model = built(initialisation="fixup", norm={"kind": "identity"}, branch_scale=1.0).eval()
    ids = torch.arange(12)[None]
    with torch.no_grad():
        hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert torch.equal(hidden[0], hidden[1]) and torch.equal(hidden[0], hidden[2])


def test_ngpt_vectors_have_unit_length_after_every_step() -> None:
    model = built(placement="ngpt", norm=L2_NORM, initialisation="ngpt", linear_bias=False)

    def lengths(model: Any) -> Tensor:
        of = [model.model.embed_tokens.weight.norm(dim=1), model.lm_head.weight.norm(dim=1)]
        of += [w.norm(dim=1) for name in READERS for w in weights(model, name)]
        of += [w.norm(dim=0) for name in ("o", "down") for w in weights(model, name)]
        return torch.cat(of).detach()

    torch.testing.assert_close(lengths(model), torch.ones_like(lengths(model)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert (lengths(model) - 1).abs().min() > 0.4
    model.after_step()
    torch.testing.assert_close(lengths(model), torch.ones_like(lengths(model)))
    before = {name: p.clone() for name, p in built().named_parameters()}
    plain = built()
    plain.after_step()
    assert all(torch.equal(p, before[name]) for name, p in plain.named_parameters())


@pytest.mark.parametrize("gated", [False, True])
def test_ngpt_factors(gated: bool) -> None:
    model = built(placement="ngpt", norm=L2_NORM, initialisation="ngpt", gated=gated)
    block = model.model.layers[1]
    mlp: Any = block.mlp.body
    into_activation = mlp.gate_scale if gated else mlp.up_scale
    torch.testing.assert_close(into_activation.value(), torch.full((160,), math.sqrt(D)))
    assert into_activation.weight.unique().item() == 1.0
    if gated:
        assert mlp.up_scale.value().unique().item() == 1.0
    rate: Any = block.attn.combine
    torch.testing.assert_close(rate.scale.value(), torch.full((D,), 0.05))
    torch.testing.assert_close(rate.scale.weight.detach(), torch.full((D,), D**-0.5))
    assert model.logit_scale is not None
    torch.testing.assert_close(model.logit_scale.value(), torch.ones(64))


@pytest.mark.parametrize("linear", ["weight_norm", "weight_conditioning"])
def test_reparametrised_weights(linear: str) -> None:
    model = built(linear=linear)
    for weight in weights(model, "q"):
        lengths = weight.norm(dim=1)
        if linear == "weight_norm":
            assert weight.std().item() == pytest.approx(0.03, rel=0.05)
            assert lengths.std() > 1e-3
        else:
            torch.testing.assert_close(lengths, torch.ones_like(lengths))
    small = built(linear="weight_norm", initialisation="fixup")
    assert 0 < weights(small, "o")[0].std() < 2e-3


def test_the_same_seed_is_the_same_model() -> None:
    one, other = built(), built()
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))
    assert one.config.to_dict() == other.config.to_dict()
