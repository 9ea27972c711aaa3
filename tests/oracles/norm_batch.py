"""Norms by statistics of the batch, one feature and one number at a time.

A batch is a list of numbers: one feature of every token. Each class is one feature over the
steps of a training run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Batch:
    """Batch normalization."""

    eps: float
    momentum: float
    mean: float = 0.0
    variance: float = 1.0

    def step(self, x: Sequence[float]) -> list[float]:
        n = len(x)
        mean = sum(x) / n
        variance = sum((v - mean) ** 2 for v in x) / n
        self.mean += self.momentum * (mean - self.mean)
        self.variance += self.momentum * (variance * n / (n - 1) - self.variance)
        return [(v - mean) / math.sqrt(variance + self.eps) for v in x]


@dataclass
class Power:
    """PowerNorm: algorithm 2 of 2003.07845 with a warm-up by the batch's own statistics."""

    eps: float
    keep: float
    warmup: int
    square: float = 1.0
    nu: float = 0.0
    steps: int = 0
    squares: list[float] = field(default_factory=list)

    def step(self, x: Sequence[float], g: Sequence[float]) -> tuple[list[float], list[float]]:
        """``xhat`` and the gradient of x, for the gradient g of ``xhat``."""
        self.steps += 1
        n = len(x)
        own = sum(v * v for v in x) / n
        warm = self.steps <= self.warmup
        divisor = math.sqrt((own if warm else self.square) + self.eps)
        xhat = [v / divisor for v in x]
        if warm:
            self.squares.append(own)
            self.square = sum(self.squares) / len(self.squares)
        else:
            self.square = self.keep * self.square + (1 - self.keep) * own
        dx = [(d - self.nu * v) / divisor for d, v in zip(g, xhat, strict=True)]
        product = sum(d * v for d, v in zip(g, xhat, strict=True)) / n
        power = sum(v * v for v in xhat) / n
        self.nu = self.nu * (1 - (1 - self.keep) * power) + (1 - self.keep) * product
        return xhat, dx


@dataclass
class Unified:
    """Unified normalization of all features together, since one of them can skip a batch."""

    features: int
    window: int
    eps: float
    keep: float
    warmup: int
    filtering: bool
    step_count: int = 0
    skips: int = 0

    def __post_init__(self) -> None:
        self.past = [[0.0] * self.features for _ in range(self.window)]
        self.gradients = [[0.0] * self.features for _ in range(self.window)]
        self.running = [1.0] * self.features
        self.average = [0.0] * self.features

    def step(
        self, x: Sequence[Sequence[float]], g: Sequence[Sequence[float]]
    ) -> tuple[list[list[float]], list[list[float]], list[float]]:
        """Per feature: ``xhat``, the gradient of x, and that of the gain."""
        self.step_count += 1
        t, slot = self.step_count, self.step_count % self.window
        own = [sum(v * v for v in feature) / len(feature) for feature in x]
        roots = [math.sqrt(v) for row in self.past for v in row]
        centre = sum(roots) / len(roots)
        spread = sum((v - centre) ** 2 for v in roots) / (len(roots) - 1)
        self.past[slot] = list(own)
        skip = False
        if t >= self.warmup and self.filtering:
            skip = any(
                self._arithmetic(i) - self._geometric(i) > spread * self.window
                for i in range(self.features)
            )
            if skip:
                self.past[slot] = list(self.running)
                self.skips += 1
        direct = t <= self.window or t < self.warmup or skip
        outputs, gradients, gains = [], [], []
        new_gradients = [0.0] * self.features
        for i in range(self.features):
            used = own[i] if direct else self._geometric(i)
            divisor = math.sqrt(used + self.eps)
            ratio = 1.0
            if t > max(1000, self.warmup) and not skip:
                ratio = min(max(divisor / math.sqrt(self.running[i] + self.eps), 0.2), 5.0)
            self.running[i] = self.keep * self.running[i] + (1 - self.keep) * used
            xhat = [v / divisor for v in x[i]]
            h = [ratio * d for d in g[i]]
            product = sum(d * v for d, v in zip(h, xhat, strict=True)) / len(xhat)
            new_gradients[i] = self.average[i] if skip else product
            column = [self.gradients[j][i] for j in range(self.window) if j != slot]
            mean = product if direct else (sum(column) + new_gradients[i]) / self.window
            self.average[i] = self.keep * self.average[i] + (1 - self.keep) * mean
            taken = mean if skip else self.average[i]
            outputs.append(xhat)
            gradients.append([(d - taken * v) / divisor for d, v in zip(h, xhat, strict=True)])
            gains.append(sum(ratio * d * v for d, v in zip(g[i], xhat, strict=True)))
        self.gradients[slot] = new_gradients
        return outputs, gradients, gains

    def _arithmetic(self, feature: int) -> float:
        return sum(row[feature] for row in self.past) / self.window

    def _geometric(self, feature: int) -> float:
        product = math.prod(row[feature] for row in self.past)
        return product ** (1 / self.window)
