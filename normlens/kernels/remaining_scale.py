"""The final norm's scale without one component: ``scale(r - c)``, for every component.

With tildes for centring where the norm centres its input:

* live and a function of ``mean(x~**2)``: from ``|r~ - c~|**2 = |r~|**2 - 2 r~.c~ + |c~|**2``,
  which for a head ``c = z W`` is ``|r~|**2 + z . (G z - 2 W r~)`` with the Gram matrix
  ``G = W~ W~'``: no head's output is made;
* any other live scale (L1, CRMS): the norm's own definition on the vector ``r - c``, one
  component at a time;
* constant: the same with and without, bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.norms.reference import centre, scale_from_mean_square, scale_of
from normlens.norms.spec import NormSpec

Residual = Float[Tensor, "token d_model"]


class RemainingScale(ABC):
    """Scales of ``r`` and of ``r - c``, float64.

    Attributes:
        intact: ``scale(r)``.
    """

    def __init__(self, intact: Float[Tensor, " token"]) -> None:
        self.intact = intact

    @abstractmethod
    def without_vector(self, c: Residual) -> Float[Tensor, "one token"]:
        """Without a component given as vectors."""

    @abstractmethod
    def without_constant(self, c: Float[Tensor, " d_model"]) -> Float[Tensor, "one token"]:
        """Without a component that is the same at every token."""

    @abstractmethod
    def without_heads(
        self, z: Float[Tensor, "token width"], w_o: Float[Tensor, "head d_head d_model"]
    ) -> Float[Tensor, "head token"]:
        """Without each head ``z_h W_h``."""


def remaining_scale(
    spec: NormSpec, residual: Residual, positions: Int[Tensor, " token"]
) -> RemainingScale:
    """The way to get at scales that the kind of norm has.

    Args:
        spec: of a norm that has a scale.
        residual: its input, float32 or wider.
        positions: of each token in its sequence.
    """
    r = centre(spec, residual)
    if not spec.kind.has_live_scale:
        return ConstantScale(spec, positions)
    return QuadraticScale(spec, r) if spec.kind.quadratic else MeasuredScale(spec, r)


class ConstantScale(RemainingScale):
    """A scale that no component changes."""

    def __init__(self, spec: NormSpec, positions: Int[Tensor, " token"]) -> None:
        length = int(positions.max()) + 1
        nothing = torch.zeros(length, spec.width, dtype=torch.float64, device=positions.device)
        constants = scale_of(spec, nothing).expand(length, 1)[:, 0]
        super().__init__(constants[positions])

    def without_vector(self, c: Tensor) -> Tensor:
        """The constant."""
        return self.intact[None]

    def without_constant(self, c: Tensor) -> Tensor:
        """The constant."""
        return self.intact[None]

    def without_heads(self, z: Tensor, w_o: Tensor) -> Tensor:
        """The constant, for every head."""
        return self.intact.expand(len(w_o), -1)


class QuadraticScale(RemainingScale):
    """A scale that is a function of the mean square."""

    def __init__(self, spec: NormSpec, r: Residual) -> None:
        self._spec, self._r = spec, r
        self._square = _dot(r, r)
        super().__init__(self._scale(self._square))

    def without_vector(self, c: Tensor) -> Tensor:
        """The vector is subtracted outright."""
        rest = self._r - centre(self._spec, c)
        return self._scale(_dot(rest, rest)[None])

    def without_constant(self, c: Tensor) -> Tensor:
        """Two products."""
        c = centre(self._spec, c)
        change = _dot(c, c) - 2 * (self._r @ c).double()
        return self._scale((self._square + change)[None])

    def without_heads(self, z: Tensor, w_o: Tensor) -> Tensor:
        """From the Gram matrix of each head."""
        centred = centre(self._spec, w_o)
        gram = centred @ centred.transpose(1, 2)
        by_head = z.unflatten(1, w_o.shape[:2]).transpose(0, 1)
        outward = self._r @ w_o.flatten(0, 1).T
        outward = outward.unflatten(1, w_o.shape[:2]).transpose(0, 1)
        change = torch.baddbmm(outward, by_head, gram, beta=-2).mul_(by_head)
        return self._scale(self._square + change.sum(-1).double())

    def _scale(self, square: Tensor) -> Tensor:
        return scale_from_mean_square(self._spec, square.clamp_min(0.0) / self._spec.width)


class MeasuredScale(RemainingScale):
    """A scale that only the whole vector tells."""

    def __init__(self, spec: NormSpec, r: Residual) -> None:
        self._spec, self._r = spec, r
        super().__init__(self._scale(r))

    def without_vector(self, c: Tensor) -> Tensor:
        """Of what is left."""
        return self._scale(self._r - centre(self._spec, c))[None]

    def without_constant(self, c: Tensor) -> Tensor:
        """Of what is left."""
        return self.without_vector(c)

    def without_heads(self, z: Tensor, w_o: Tensor) -> Tensor:
        """Of what is left, one head's output at a time."""
        by_head = z.unflatten(1, w_o.shape[:2]).unbind(1)
        rows = [self.without_vector(z_h @ w) for z_h, w in zip(by_head, w_o, strict=True)]
        return torch.cat(rows)

    def _scale(self, centred: Tensor) -> Tensor:
        return scale_of(self._spec, centred)[..., 0].double()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a, b).double()
