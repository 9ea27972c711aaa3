"""Freezing the scales one by one, and what the model is afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from normlens.errors import NotApplicable
from normlens.norms import FixedScale
from normlens.training.recipe import Phase, Removal
from normlens.training.removal import (
    NormRemoval,
    RemovableNorm,
    SplitProjection,
    removable_layers,
)
from tests.tiny import EPS, tiny_fixed_scale, tiny_gpt2, tiny_llama

WIDTH = 32
PLAN = Removal(
    mlp=Phase(start=1, gap=1), qk=Phase(start=3, gap=1), v=Phase(start=5, gap=1), final_step=7
)


def inputs(seed: int = 0) -> Tensor:
    """Activations with a non-zero mean and a scale that differs by token."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 5, WIDTH, generator=generator)
    return 0.7 + x * torch.linspace(0.5, 3, 5)[None, :, None]


def random_norm(seed: int = 0) -> nn.LayerNorm:
    norm = tiny_gpt2(seed).transformer.h[0].ln_1
    assert isinstance(norm, nn.LayerNorm)
    return norm


def token_ids(seed: int = 0) -> Tensor:
    return torch.randint(0, 4096, (2, 7), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return model(input_ids=ids).logits


@torch.no_grad()
def test_a_live_removable_norm_is_its_layer_norm() -> None:
    norm, x = random_norm(), inputs()
    torch.testing.assert_close(RemovableNorm(norm, split=False)(x), norm(x))
    torch.testing.assert_close(RemovableNorm(norm, split=True)(x), norm(x).repeat(1, 1, 2))


@torch.no_grad()
def test_the_average_follows_the_mean_scale_until_it_is_frozen() -> None:
    norm = RemovableNorm(random_norm(), split=False)
    means = []
    for seed in range(3):
        x = inputs(seed)
        norm(x)
        norm.update_average(0.9)
        means.append((x.var(-1, correction=0) + EPS).sqrt().mean().item())
    expected = 0.9 * (0.9 * means[0] + 0.1 * means[1]) + 0.1 * means[2]
    assert norm.average.item() == pytest.approx(expected, rel=1e-6)
    norm.frozen = True
    norm(inputs(3))
    norm.update_average(0.9)
    assert norm.average.item() == pytest.approx(expected, rel=1e-6)


@torch.no_grad()
def test_v_stays_live_while_q_and_k_are_frozen() -> None:
    source, x = random_norm(), inputs()
    norm = RemovableNorm(source, split=True)
    norm.average.fill_(2.5)
    norm.frozen = True
    y_qk, y_v = norm(x).chunk(2, -1)
    centred = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(y_qk, centred / 2.5 * source.weight + source.bias)
    torch.testing.assert_close(y_v, source(x))
    norm.frozen_v = True
    y_qk, y_v = norm(x).chunk(2, -1)
    assert torch.equal(y_qk, y_v) and not torch.allclose(y_v, source(x))


@torch.no_grad()
def test_the_split_projection_feeds_v_alone_from_the_second_half() -> None:
    projection = tiny_gpt2().transformer.h[0].attn.c_attn
    assert isinstance(projection, Conv1D)
    split, y = SplitProjection(projection), inputs()
    q, k, v = projection(y).split(WIDTH, -1)
    torch.testing.assert_close(split(torch.cat([y, y], -1)), torch.cat([q, k, v], -1))
    changed = split(torch.cat([y, inputs(1)], -1)).split(WIDTH, -1)
    torch.testing.assert_close(changed[0], q)
    torch.testing.assert_close(changed[1], k)
    torch.testing.assert_close(changed[2], projection(inputs(1)).split(WIDTH, -1)[2])
    assert not torch.allclose(changed[2], v)


def test_installing_the_removal_changes_nothing_yet() -> None:
    model, ids = tiny_gpt2(), token_ids()
    before = logits(model, ids)
    names = {name for name, _ in model.named_parameters()}
    removal = NormRemoval(model, PLAN)
    assert removal.advance(0) == 7
    torch.testing.assert_close(logits(model, ids), before)
    assert {name for name, _ in model.named_parameters()} == names


def test_each_switch_is_thrown_at_its_step() -> None:
    removal = NormRemoval(tiny_gpt2(), PLAN)
    assert [removal.advance(step) for step in range(9)] == [7, 6, 5, 4, 3, 2, 1, 0, 0]


def test_finishing_keeps_the_logits_once_all_is_frozen() -> None:
    model, ids = tiny_gpt2(), token_ids()
    original = logits(model, ids)
    removal = NormRemoval(model, PLAN)
    logits(model, ids)
    removal.observe()
    removal.advance(6)
    final_live = logits(model, ids)
    removal.advance(7)
    frozen = logits(model, ids)
    removal.finish()
    torch.testing.assert_close(logits(model, ids), frozen)
    assert not torch.allclose(frozen, final_live) and not torch.allclose(frozen, original)


def test_finishing_leaves_fixed_scales_and_plain_projections() -> None:
    model = tiny_gpt2()
    names = {name for name, _ in model.named_parameters()}
    removal = NormRemoval(model, PLAN)
    logits(model, token_ids())
    removal.observe()
    averages = {
        n: m.average.item() for n, m in model.named_modules() if isinstance(m, RemovableNorm)
    }
    removal.advance(7)
    removal.finish()
    fixed = {n: m.scale.item() for n, m in model.named_modules() if isinstance(m, FixedScale)}
    assert fixed == averages and len(fixed) == 5
    assert not [m for m in model.modules() if isinstance(m, (nn.LayerNorm, RemovableNorm))]
    assert all(isinstance(block.attn.c_attn, Conv1D) for block in model.transformer.h)
    assert {name for name, _ in model.named_parameters()} == names


def eps_encoded() -> GPT2LMHeadModel:
    return tiny_gpt2(layer_norm_epsilon=1e12)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (tiny_llama, "no recipe that removes the scales of a pretrained RMSNorm model is known"),
        (tiny_fixed_scale, "the scale of transformer.h.0.ln_1 is a constant already"),
        (eps_encoded, "the scale of transformer.h.0.ln_1 is a constant already"),
        (lambda: tiny_gpt2(add_cross_attention=True), "cross-attention"),
    ],
)
def test_models_that_cannot_lose_their_scales_are_refused(make, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        removable_layers(make())
