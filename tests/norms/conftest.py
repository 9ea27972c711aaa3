"""Inputs of mean 0.8, a gain and a bias for the tests of the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.norms.specs import WIDTH


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
