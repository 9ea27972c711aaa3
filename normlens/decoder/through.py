"""Optional parts of a block, and where its norms come from."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Norms = Callable[[int], nn.Module]
"""Makes a new norm of the model's kind for a width."""


def through(module: nn.Module | None, x: Tensor) -> Tensor:
    """``module(x)``, or ``x`` where there is no module."""
    return x if module is None else module(x)
