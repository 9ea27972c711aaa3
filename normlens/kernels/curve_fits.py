"""Least-squares fits of an input-output curve: a tanh, an ELN and a straight line.

    tanh   y = s tanh(alpha x)                                   DyT (2503.10622 eq. 1)
    eln    y = s x / sqrt(beta + x**2) = s u / sqrt(1 + u**2),   DyISRU (2503.21708)
           u = alpha x, alpha = 1 / sqrt(beta)
    line   y = slope x + intercept

1. For a given alpha, the error is quadratic in s:
   ``sum (y - s f)**2 = sum y**2 - 2 s P + s**2 Q`` with ``P = sum f y`` and ``Q = sum f**2``,
   so ``s = P / Q`` and the error left is ``sum y**2 - P**2 / Q``.
2. P and Q come from the bins, expanded to second order about each bin's mean x:
   ``sum f y = f Sy + f' Cxy + f'' ybar Vx / 2`` and
   ``sum f**2 = n f**2 + (f'**2 + f f'') Vx``, with ``Cxy`` and ``Vx`` the bin's centred sums.
   Bins are an eighth of an octave wide, which leaves errors around 1e-5 of the total.
3. alpha: best of a grid in ln alpha, refined by Brent's bounded search (scipy) about it.

A curve without bend has its optimum at ``alpha -> 0``, where only ``s alpha`` means something.
Below ``alpha max |x| = 0.1``, where tanh is within 0.4 % of a line, alpha is set to
``0.01 / max |x|`` and the fit called ``straight``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from normlens.kernels.curve_bins import Curve

Values = NDArray[np.float64]
Shape = Callable[[Values], tuple[Values, Values, Values]]
"""A function of ``u = alpha x`` and its first two derivatives."""

STEPS_PER_DECADE = 12
STRAIGHT = 0.1
"""``alpha max|x|`` below which a fit is called a line."""
PINNED = 0.01
"""``alpha max|x|`` of a line: tanh(u) is then within 4e-5 of u."""


def tanh_shape(u: Values) -> tuple[Values, Values, Values]:
    """``tanh u``."""
    f = np.tanh(u)
    slope = 1 - f * f
    return f, slope, -2 * f * slope


def eln_shape(u: Values) -> tuple[Values, Values, Values]:
    """``u / sqrt(1 + u**2)``."""
    root = 1 / np.sqrt(1 + u * u)
    return u * root, root**3, -3 * u * root**5


@dataclass(frozen=True)
class Saturating:
    """``y = s f(alpha x)``.

    Attributes:
        shape: f.
        s: the value it saturates at, dimensionless.
        alpha: positive, per unit of x.
        straight: whether no bend was found; then only ``s * alpha`` is determined.
    """

    shape: Shape
    s: float
    alpha: float
    straight: bool

    @property
    def slope(self) -> float:
        """At 0, per unit of x."""
        return self.s * self.alpha

    @property
    def beta(self) -> float:
        """``1 / alpha**2``, units of x squared: the constant of the ELN form."""
        return 1 / self.alpha**2

    def square_error(self, curve: Curve) -> float:
        """``sum (y - s f(alpha x))**2`` over the curve's elements."""
        p, q = _Projections.of(curve)(self.shape, self.alpha)
        return max(curve.totals["yy"] - 2 * self.s * p + self.s**2 * q, 0.0)


@dataclass(frozen=True)
class Line:
    """``y = slope x + intercept``."""

    slope: float
    intercept: float

    def square_error(self, curve: Curve) -> float:
        """``sum (y - slope x - intercept)**2`` over the curve's elements, exact."""
        a, b, t = self.slope, self.intercept, curve.totals
        error = t["yy"] + a * a * t["xx"] + t["n"] * b * b
        return max(error - 2 * a * t["xy"] - 2 * b * t["y"] + 2 * a * b * t["x"], 0.0)


@dataclass(frozen=True)
class Fits:
    """The three fits of one curve."""

    tanh: Saturating
    eln: Saturating
    line: Line

    def errors(self, curve: Curve) -> dict[str, float]:
        """RMS error of each fit over the curve's elements; n must not be 0."""
        fits = {"tanh": self.tanh, "eln": self.eln, "line": self.line}
        return {name: math.sqrt(fit.square_error(curve) / curve.n) for name, fit in fits.items()}


def fit(curve: Curve) -> Fits:
    """Fit all three to a curve with elements."""
    return Fits(_saturating(curve, tanh_shape), _saturating(curve, eln_shape), _line(curve))


def square_total(curve: Curve) -> float:
    """``sum (y - mean y)**2``, what an R**2 is a share of."""
    t = curve.totals
    return max(t["yy"] - t["y"] ** 2 / t["n"], 0.0)


def square_floor(curve: Curve) -> float:
    """The error about a line of its own in every bin: what no function of x explains.

    A bin of one or two elements has none, so the tails of small samples look too good.
    """
    bins = curve.bins
    spread, cross = _centred(bins)
    variance = np.maximum(bins["yy"] - bins["y"] ** 2 / bins["n"], 0.0)
    explained = np.divide(cross**2, spread, out=np.zeros_like(cross), where=spread > 0)
    return float(np.maximum(variance - explained, 0.0).sum())


def _line(curve: Curve) -> Line:
    t = curve.totals
    spread = t["xx"] - t["x"] ** 2 / t["n"]
    slope = (t["xy"] - t["x"] * t["y"] / t["n"]) / spread if spread > 0 else 0.0
    return Line(slope, (t["y"] - slope * t["x"]) / t["n"])


def _saturating(curve: Curve, shape: Shape) -> Saturating:
    bins = curve.bins
    largest = float(np.abs(bins["x"] / bins["n"]).max())
    typical = math.sqrt(curve.totals["xx"] / curve.n)
    if largest == 0:
        return Saturating(shape, 0.0, 1.0, straight=True)
    low, high = math.log(PINNED / largest), math.log(1e3 / typical)
    left = _ErrorLeft(_Projections.of(curve), shape)
    steps = max(2, math.ceil((high - low) / math.log(10) * STEPS_PER_DECADE))
    grid = np.linspace(low, high, steps)
    best = int(np.argmin([left(point) for point in grid]))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, steps - 1)]
    found: Any = minimize_scalar(left, bounds=ends, method="bounded", options={"xatol": 1e-7})
    straight = math.exp(float(found.x)) * largest < STRAIGHT
    alpha = PINNED / largest if straight else math.exp(float(found.x))
    p, q = left.projections(shape, alpha)
    return Saturating(shape, p / q, alpha, straight)


@dataclass(frozen=True)
class _Projections:
    """``sum f y`` and ``sum f**2`` over all elements, for any f and alpha.

    Per bin the count, the means of x and y, and the centred sums ``sum (x - mean x)**2`` and
    ``sum (x - mean x) (y - mean y)``.
    """

    n: Values
    x: Values
    y: Values
    spread: Values
    cross: Values

    @staticmethod
    def of(curve: Curve) -> _Projections:
        bins = curve.bins
        x, y = bins["x"] / bins["n"], bins["y"] / bins["n"]
        return _Projections(bins["n"], x, y, *_centred(bins))

    def __call__(self, shape: Shape, alpha: float) -> tuple[float, float]:
        f, slope, bend = shape(alpha * self.x)
        slope, bend = alpha * slope, alpha**2 * bend
        p = self.n * f * self.y + slope * self.cross + bend * self.y * self.spread / 2
        q = self.n * f * f + (slope * slope + f * bend) * self.spread
        return float(p.sum()), float(q.sum())


@dataclass(frozen=True)
class _ErrorLeft:
    """Minus ``P**2 / Q``, as a function of ln alpha."""

    projections: _Projections
    shape: Shape

    def __call__(self, log_alpha: float) -> float:
        p, q = self.projections(self.shape, math.exp(log_alpha))
        return -p * p / q


def _centred(bins: dict[str, Values]) -> tuple[Values, Values]:
    """Per bin ``sum (x - mean x)**2`` and ``sum (x - mean x) (y - mean y)``."""
    spread = np.maximum(bins["xx"] - bins["x"] ** 2 / bins["n"], 0.0)
    return spread, bins["xy"] - bins["x"] * bins["y"] / bins["n"]
