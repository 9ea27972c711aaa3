"""The FixedScale module against its formula."""

from __future__ import annotations

import pytest
import torch

from normlens.norms import FixedScale

X = 0.7 + torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def randomised(**options: bool) -> FixedScale:
    generator = torch.Generator().manual_seed(1)
    module = FixedScale(6, 2.3, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(6, generator=generator))
    return module


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_formula(centred: bool, bias: bool) -> None:
    module = randomised(centred=centred, bias=bias)
    x = X - X.mean(-1, keepdim=True) if centred else X
    expected = x / 2.3 * module.weight
    if module.bias is not None:
        expected = expected + module.bias
    torch.testing.assert_close(module(X), expected)


def test_is_affine_in_its_input() -> None:
    module = randomised()
    a, b = X[:2], X[2:]
    torch.testing.assert_close(module(a) + module(b), module(a + b) + module(torch.zeros_like(a)))


def test_keeps_the_dtype_of_its_input() -> None:
    module = randomised()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert module.to(dtype)(X.to(dtype)).dtype is dtype


def test_scale_is_saved_and_named_in_print() -> None:
    module = randomised()
    assert module.state_dict()["scale"].item() == pytest.approx(2.3)
    assert "scale=2.3" in repr(module)
