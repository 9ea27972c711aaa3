"""Norms by statistics of the batch: training by naive loops, eval mode as an affine map."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normlens.norms import BatchNormModule, make_norm
from normlens.norms.kinds.batch_norm import BatchNorm
from normlens.norms.kinds.power_norm import PowerNorm
from normlens.norms.kinds.unified_norm import UnifiedNorm
from tests.norms.specs import BATCH_NORM, EPS, POWER_NORM, UNIFIED_NORM, WIDTH, randomised
from tests.oracles import norm_batch as oracle


def batch(step: int, size: float = 1.0) -> tuple[Tensor, Tensor]:
    """An input of 2 x 5 tokens and a gradient, both different at every step."""
    generator = torch.Generator().manual_seed(step)
    draw = torch.randn(2, 2, 5, WIDTH, generator=generator, dtype=torch.float64)
    spread = torch.linspace(0.5, 2, WIDTH)
    return size * (0.4 + draw[0]) * spread, draw[1] + 0.2


def columns(x: Tensor) -> list[list[float]]:
    """Per feature, its value at every token."""
    return x.reshape(-1, WIDTH).T.tolist()


def trained(module: nn.Module, step: int, size: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """One training step: input, output, and the gradient of the input."""
    x, gradient = batch(step, size)
    x.requires_grad_()
    module.zero_grad()
    y = module.train()(x)
    y.backward(gradient)
    assert x.grad is not None
    return x.detach(), y.detach(), x.grad


def test_batch_norm_is_torchs() -> None:
    ours, torchs = BatchNorm(BATCH_NORM, momentum=0.3).double(), nn.BatchNorm1d(WIDTH, EPS, 0.3)
    randomised(ours)
    torchs.double().load_state_dict(
        {
            name.replace("iterations", "num_batches_tracked"): value
            for name, value in ours.state_dict().items()
        }
    )
    for step in range(3):
        _, y, gradient = trained(ours, step)
        x, g = batch(step)
        x.requires_grad_()
        torchs.zero_grad()
        expected = torchs.train()(x.reshape(-1, WIDTH)).reshape(x.shape)
        expected.backward(g)
        torch.testing.assert_close(y, expected.detach())
        torch.testing.assert_close(gradient, x.grad)
        torch.testing.assert_close(ours.weight.grad, torchs.weight.grad)
    torch.testing.assert_close(ours.running_mean, torchs.running_mean)
    torch.testing.assert_close(ours.running_var, torchs.running_var)
    x = batch(9)[0]
    torch.testing.assert_close(ours.eval()(x), torchs.eval()(x.reshape(-1, WIDTH)).view(x.shape))


def test_batch_norm_by_hand() -> None:
    module = randomised(BatchNorm(BATCH_NORM, momentum=0.3)).double()
    features = [
        oracle.Batch(EPS, 0.3, mean, variance)
        for mean, variance in zip(
            module.running_mean.tolist(), module.running_var.tolist(), strict=True
        )
    ]
    for step in range(2):
        x, y, _ = trained(module, step)
        xhat = torch.tensor([f.step(c) for f, c in zip(features, columns(x), strict=True)])
        expected = xhat.T.reshape(x.shape).double() * module.weight + module.bias
        torch.testing.assert_close(y, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        module.running_var, torch.tensor([f.variance for f in features]).double()
    )


def test_power_norm_by_hand() -> None:
    module = randomised(PowerNorm(POWER_NORM, keep=0.8, keep_gradient=0.8, warmup=2)).double()
    starts = module.running_square.tolist()
    features = [oracle.Power(EPS, 0.8, 2, square=start) for start in starts]
    weight, bias = module.weight.detach(), module.bias.detach()
    for step in range(6):
        x, y, gradient = trained(module, step)
        g = batch(step)[1] * weight
        each = [f.step(c, d) for f, c, d in zip(features, columns(x), columns(g), strict=True)]
        xhat = torch.tensor([e[0] for e in each], dtype=torch.float64).T.reshape(x.shape)
        dx = torch.tensor([e[1] for e in each], dtype=torch.float64).T.reshape(x.shape)
        torch.testing.assert_close(y, xhat * weight + bias)
        torch.testing.assert_close(gradient, dx)
        assert module.running_square.tolist() == pytest.approx([f.square for f in features])
        assert module.nu.tolist() == pytest.approx([f.nu for f in features])
    assert (module.nu.abs() > 1e-3).any()


@pytest.mark.parametrize("start", [0, 2000], ids=["early", "with compensated gradients"])
def test_unified_norm_by_hand(start: int) -> None:
    settings = {"window": 3, "keep": 0.8, "warmup": 5}
    module = randomised(UnifiedNorm(UNIFIED_NORM, **settings)).double()
    module.iterations.fill_(start)
    naive = oracle.Unified(WIDTH, eps=EPS, filtering=True, step_count=start, **settings)
    naive.running = module.running_square.tolist()
    if start:
        module.window.copy_(torch.linspace(0.5, 2.5, 3 * WIDTH).reshape(3, WIDTH))
        naive.past = module.window.tolist()
    weight, bias = module.weight.detach(), module.bias.detach()
    for step in range(9):
        size = 40.0 if step == 7 else 1.0
        x, y, gradient = trained(module, step, size)
        g = batch(step)[1]
        outputs, gradients, gains = naive.step(columns(x), columns(g * weight))
        xhat = torch.tensor(outputs, dtype=torch.float64).T.reshape(x.shape)
        dx = torch.tensor(gradients, dtype=torch.float64).T.reshape(x.shape)
        torch.testing.assert_close(y, xhat * weight + bias)
        torch.testing.assert_close(gradient, dx)
        gain = torch.tensor(gains, dtype=torch.float64) / weight
        torch.testing.assert_close(module.weight.grad, gain)
        assert module.running_square.tolist() == pytest.approx(naive.running)
        assert module.window.flatten().tolist() == pytest.approx(
            [v for row in naive.past for v in row]
        )
        assert module.skipped.item() == naive.skips
    assert naive.skips >= 1


def test_an_outlier_that_is_not_skipped_enters_the_window() -> None:
    module = UnifiedNorm(UNIFIED_NORM, window=2, warmup=3, skip_outliers=False).double()
    for step in range(6):
        trained(module, step, 40.0 if step == 5 else 1.0)
    assert module.skipped.item() == 0
    assert module.window.max() > 100


@pytest.mark.parametrize("spec", [BATCH_NORM, POWER_NORM, UNIFIED_NORM], ids=lambda s: s.kind.value)
def test_eval_mode_is_affine_and_leaves_no_trace(spec: object) -> None:
    module = randomised(make_norm(spec)).double()
    assert isinstance(module, BatchNormModule)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    x, other = batch(0)[0], batch(1)[0]
    gain, bias = module.folded()
    torch.testing.assert_close(module(x), x * gain + bias)
    # A token's output is the same whatever else is in the batch, and is not in training.
    together = module(torch.cat([x, other]))
    torch.testing.assert_close(together[:2], module(x))
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())
    module.train()
    assert (module(torch.cat([x, 9 * other]))[:2] - together[:2]).abs().max() > 1e-2


def test_batch_statistics_of_one_token_are_refused() -> None:
    with pytest.raises(ValueError, match="more than one token"):
        BatchNorm(BATCH_NORM).train()(torch.ones(1, 1, WIDTH))
