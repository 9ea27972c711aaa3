"""The losses against formulas written out by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from normlens.training.objective import auxiliary_scale_loss, evaluate, next_token_loss
from normlens.training.recipe import AuxiliaryScaleLoss, Optimizer
from normlens.training.trainer import learning_rate
from tests.oracles import auxiliary_scale_loss as oracle
from tests.tiny import tiny_gpt2

EPS = 3e-4


def activations() -> torch.Tensor:
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[:, 0] *= 5
    return 0.5 + x


def test_the_auxiliary_loss_is_the_formula() -> None:
    x = activations().requires_grad_()
    loss = auxiliary_scale_loss(x, EPS, AuxiliaryScaleLoss(weight=0.3))
    loss.backward()
    numbers = x.detach().numpy()
    assert loss.item() == pytest.approx(oracle.loss(numbers, EPS, 0.3), rel=1e-12)
    assert x.grad is not None
    expected = torch.from_numpy(oracle.gradient(numbers, EPS, 0.3))
    torch.testing.assert_close(x.grad, expected)


def test_the_target_leaves_out_the_first_position() -> None:
    x = activations()
    found = auxiliary_scale_loss(x, EPS, AuxiliaryScaleLoss(weight=1.0)).item()
    scale = torch.from_numpy(oracle.scales(x.numpy(), EPS))
    with_first = (scale - scale.mean()).square().mean().item()
    assert abs(found - with_first) > 0.1 * found


def test_the_next_token_loss_is_the_mean_negative_log_probability() -> None:
    model = tiny_gpt2()
    ids = torch.randint(0, 4096, (2, 5), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        probabilities = model(input_ids=ids).logits.double().softmax(-1)
        found = next_token_loss(model, ids).item()
    terms = [-math.log(probabilities[b, t, ids[b, t + 1]]) for b in range(2) for t in range(4)]
    assert found == pytest.approx(sum(terms) / len(terms), rel=1e-5)


def test_an_evaluation_does_not_depend_on_the_batch_size() -> None:
    model = tiny_gpt2()
    ids = torch.randint(0, 4096, (5, 6), generator=torch.Generator().manual_seed(3))
    assert evaluate(model, ids, 2) == pytest.approx(evaluate(model, ids, 5), rel=1e-5)


def test_the_learning_rate_warms_up_and_decays_to_its_floor() -> None:
    optimizer = Optimizer(lr=0.4, final_lr_fraction=0.25, warmup_steps=4)
    rates = [learning_rate(step, 11, optimizer) for step in range(11)]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert rates[7] == pytest.approx(0.4 * (1 + 0.25) / 2)
    assert rates[10] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(rates[4:]))


def test_an_anchor_takes_the_place_of_the_mean_scale() -> None:
    """2602.10408: ``weight * mean (scale - target)**2`` over every token, target a constant."""
    x = 0.4 + torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3))
    auxiliary = AuxiliaryScaleLoss(weight=0.3, target="anchor")
    scales = [(sum(v * v for v in row) / 8 + 1e-3) ** 0.5 for row in x.flatten(0, 1).tolist()]
    expected = 0.3 * sum((scale - 1.7) ** 2 for scale in scales) / len(scales)
    found = auxiliary_scale_loss(x, 1e-3, auxiliary, centred=False, anchor=torch.tensor(1.7))
    assert found.item() == pytest.approx(expected, rel=1e-5)
    assert auxiliary_scale_loss(x, 1e-3, auxiliary, centred=False).item() != pytest.approx(expected)
