"""The maps behind the kinds: ``centred -> scale -> xhat``, and the derivative of ``xhat``.

Three shapes cover them all, with ``c`` a change of ``centred``:

* token: ``xhat = centred / s(centred)``,  ``d xhat = (c - xhat * ds(c)) / s``
* constant: ``xhat = centred / s``,  ``d xhat = c / s``
* elementwise: ``xhat = f(centred)``,  ``d xhat = f'(centred) * c``

Everything here is written for any float dtype: the reference calls it in float64, modules
in float32 or wider.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.norms.spec import NormSpec

Wide = Float[Tensor, "*batch width"]
Column = Float[Tensor, "*batch 1"]


class NormMap(ABC):
    """What one kind computes between centring and gain."""

    @abstractmethod
    def scale(self, spec: NormSpec, centred: Wide) -> Tensor | None:
        """The denominator; broadcasts against ``centred``. None for a kind without one."""

    @abstractmethod
    def xhat(self, spec: NormSpec, centred: Wide) -> Wide:
        """The output before gain and bias."""

    @abstractmethod
    def tangent(self, spec: NormSpec, centred: Wide, c: Wide) -> Wide:
        """The derivative of ``xhat`` along the change ``c`` of ``centred``."""


class ScaledMap(NormMap):
    """``xhat = centred / scale``."""

    @abstractmethod
    def scale(self, spec: NormSpec, centred: Wide) -> Tensor:
        """The denominator, positive; broadcasts against ``centred``."""

    def slope(self, spec: NormSpec, centred: Wide, c: Wide) -> Tensor | None:
        """The derivative of the scale along ``c``; None for 0."""
        return None

    def xhat(self, spec: NormSpec, centred: Wide) -> Wide:
        """``centred / scale``."""
        return centred / self.scale(spec, centred)

    def tangent(self, spec: NormSpec, centred: Wide, c: Wide) -> Wide:
        """``(c - xhat * slope) / scale``."""
        scale, slope = self.scale(spec, centred), self.slope(spec, centred, c)
        return c / scale if slope is None else (c - centred / scale * slope) / scale


class QuadraticMap(ScaledMap):
    """A scale that is a function of ``mean(centred**2)``."""

    @abstractmethod
    def from_mean_square(self, spec: NormSpec, mean_square: Tensor) -> Tensor:
        """The scale, of the shape of ``mean_square``."""

    def scale(self, spec: NormSpec, centred: Wide) -> Column:
        """The scale of each token."""
        return self.from_mean_square(spec, centred.square().mean(-1, keepdim=True))


class RootMeanSquare(QuadraticMap):
    """``sqrt(mean(centred**2) + eps)``."""

    def from_mean_square(self, spec: NormSpec, mean_square: Tensor) -> Tensor:
        """``sqrt(mean_square + eps)``."""
        return (mean_square + (spec.eps or 0.0)).sqrt()

    def slope(self, spec: NormSpec, centred: Wide, c: Wide) -> Column:
        """``mean(centred * c) / scale``."""
        return (centred * c).mean(-1, keepdim=True) / self.scale(spec, centred)


class Length(QuadraticMap):
    """``max(||x||, eps)``: the Euclidean length, clamped from below."""

    def from_mean_square(self, spec: NormSpec, mean_square: Tensor) -> Tensor:
        """``max(sqrt(width * mean_square), eps)``."""
        # Clamped under the root, so that the gradient at 0 is 0 and not that of the root.
        return (spec.width * mean_square).clamp_min((spec.eps or 0.0) ** 2).sqrt()

    def slope(self, spec: NormSpec, centred: Wide, c: Wide) -> Column:
        """``<centred, c> / ||centred||``, 0 where the clamp holds."""
        scale = self.scale(spec, centred)
        along = (centred * c).sum(-1, keepdim=True) / scale
        above = centred.square().sum(-1, keepdim=True) > (spec.eps or 0.0) ** 2
        return torch.where(above, along, 0.0)


class Constant(QuadraticMap):
    """A scale that no input changes: 1 here."""

    def from_mean_square(self, spec: NormSpec, mean_square: Tensor) -> Tensor:
        """Ones of the shape of ``mean_square``."""
        return torch.ones_like(mean_square)


class Elementwise(NormMap):
    """``xhat = f(centred)``, element by element; there is no scale."""

    def scale(self, spec: NormSpec, centred: Wide) -> None:
        """None."""
        return None

    def tangent(self, spec: NormSpec, centred: Wide, c: Wide) -> Wide:
        """``f'(centred) * c``."""
        return self.derivative(spec, centred) * c

    @abstractmethod
    def derivative(self, spec: NormSpec, centred: Wide) -> Wide:
        """``f'`` at every element."""


def slope_at_zero(spec: NormSpec) -> float:
    """``alpha`` of a spec that needs one.

    Raises:
        ValueError: it has none.
    """
    if spec.alpha is None:
        raise ValueError(f"a spec of kind {spec.kind.value} needs its alpha")
    return spec.alpha
