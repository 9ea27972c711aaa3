"""Direct logit attribution and the exact direct effect of every component.

With ``u`` the direction read at a position (see ``readout``), ``r`` the input of the final
norm, ``c`` what a component wrote into it, tildes for centring where the norm centres, and
``scale`` the norm's denominator:

    DLA(c)    = c~.u / scale(r)                                 scale frozen
    DE(c)     = r~.u / scale(r) - (r - c)~.u / scale(r - c)      scale recomputed
    repair(c) = DE - DLA = (r - c)~.u (1 / scale(r) - 1 / scale(r - c))

1. ``c.u`` of a head is ``z . (W_O u)``: each distinct direction is projected once per layer,
   and no head's output ``[batch pos d_model]`` is ever made, nor any vocabulary-sized tensor.
2. ``scale(r - c)`` by the way that the kind of the final norm has (:mod:`remaining_scale`).
3. Scales, DLA and repair are formed in float64 from those scalars. A constant scale gives
   ``1/scale - 1/scale = 0``: DE equals DLA bit for bit.

Gauge: the value bias stays in its head, the output bias of attention is a component.

Where a norm follows attention its scale is frozen in all three: what a head writes is its
part of that norm's output (``attribution_attention``), and DE recomputes the scale of the
final norm alone.

Source: NMAE of DLA, 2507.02559 (section on direct logit attribution); the difference as
norm-mediated self-repair, 2402.15390 (section on LayerNorm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.capture.collector import EMBEDDINGS
from normlens.capture.protocol import Components, ComponentWeights
from normlens.kernels.attribution_attention import attention_terms, has_attention_bias
from normlens.kernels.readout import Readout, at_least_float32
from normlens.kernels.remaining_scale import remaining_scale
from normlens.norms.reference import centre


@dataclass(frozen=True)
class Component:
    """One term of the final residual; ``type`` is head, mlp, attn_bias or embedding."""

    name: str
    type: str
    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True)
class DirectEffects:
    """What every component does to the reading of every position, in logits, float64.

    Attributes:
        components: which term each first index is.
        dla: direct logit attribution.
        repair: exact direct effect minus DLA.
        scale: of the final norm on the intact residual, in residual units.
        constants: ``norm_bias`` and ``unembed_bias``, where the model has them.
    """

    components: tuple[Component, ...]
    dla: Float[Tensor, "component batch pos"]
    repair: Float[Tensor, "component batch pos"]
    scale: Float[Tensor, "batch pos"]
    constants: Mapping[str, Float[Tensor, "batch pos"]]

    @property
    def effect(self) -> Float[Tensor, "component batch pos"]:
        """The exact direct effect."""
        return self.dla + self.repair

    @property
    def total(self) -> Float[Tensor, "batch pos"]:
        """All contributions and constants added up: the logit read."""
        return self.dla.sum(0) + sum(self.constants.values(), torch.zeros_like(self.scale))

    def discrepancy(self, logit: Float[Tensor, "batch pos"]) -> Float[Tensor, "batch pos"]:
        """``|total - logit| / max(1, sum |contributions|)``, dimensionless."""
        constants = [value.abs() for value in self.constants.values()]
        size = self.dla.abs().sum(0) + sum(constants, torch.zeros_like(self.scale))
        return (self.total - logit).abs() / size.clamp_min(1.0)


def component_list(
    weights: ComponentWeights, embeddings: tuple[str, ...] = EMBEDDINGS
) -> tuple[Component, ...]:
    """All components of a model in the order of the residual stream."""
    out = [Component(name, "embedding") for name in embeddings]
    for layer, w_o in enumerate(weights.w_o):
        out += [Component(f"L{layer}.H{h}", "head", layer, h) for h in range(len(w_o))]
        if has_attention_bias(weights, layer):
            out.append(Component(f"L{layer}.attn_bias", "attn_bias", layer))
        out.append(Component(f"L{layer}.mlp", "mlp", layer))
    return tuple(out)


def places(some: Sequence[Component], everything: Sequence[Component]) -> list[int]:
    """Index in ``everything`` of each of ``some``."""
    index = {component.name: position for position, component in enumerate(everything)}
    return [index[component.name] for component in some]


@torch.no_grad()
def direct_effects(
    components: Components,
    weights: ComponentWeights,
    readout: Readout,
    positions: Int[Tensor, "batch pos"] | None = None,
) -> DirectEffects:
    """DLA and exact direct effect of every component at every position.

    Half precision is computed in float32, float32 and float64 in themselves.

    Args:
        components: of one forward pass.
        weights: the linear maps behind them, nothing folded.
        readout: what is read at each position.
        positions: of each token in its sequence; None: they are all of it, in order.
    """
    shape = components.residual.shape[:2]
    if positions is None:
        positions = torch.arange(shape[1], device=components.residual.device).expand(shape)
    terms = _Terms(components.residual, weights, readout, positions)
    for embedding in components.embeddings.values():
        terms.add_vector(embedding)
    for layer, mlp in enumerate(components.mlp):
        attention = attention_terms(components, weights, layer, terms.dtype)
        terms.add_heads(attention.z, attention.w_o)
        if attention.bias is not None:
            add = terms.add_constant if attention.bias.ndim == 1 else terms.add_vector
            add(attention.bias)
        terms.add_vector(mlp)
    along, before = torch.cat(terms.along), terms.scale.intact
    repair = (terms.residual_along - along) * (1 / before - 1 / torch.cat(terms.after))
    return DirectEffects(
        components=component_list(weights, tuple(components.embeddings)),
        dla=(along / before).unflatten(1, shape),
        repair=repair.unflatten(1, shape),
        scale=before.unflatten(0, shape),
        constants={name: rows[readout.row] for name, rows in readout.constants.items()},
    )


class _Terms:
    """Collects ``c.u`` and ``scale(r - c)``: ``[component token]``, float64."""

    def __init__(
        self,
        residual: Float[Tensor, "batch pos d_model"],
        weights: ComponentWeights,
        readout: Readout,
        positions: Int[Tensor, "batch pos"],
    ) -> None:
        self.dtype = at_least_float32(residual.dtype)
        flat = self._flat(residual)
        self.scale = remaining_scale(weights.final.spec, flat, positions.flatten())
        self._row = readout.row.flatten()
        self._vectors = readout.vectors.to(self.dtype)
        self._u = self._vectors[self._row]
        self.residual_along = _dot(centre(weights.final.spec, flat), self._u)
        self.along: list[Tensor] = []
        self.after: list[Tensor] = []

    def add_vector(self, c: Float[Tensor, "batch pos d_model"]) -> None:
        c = self._flat(c)
        self.along.append(_dot(c, self._u)[None])
        self.after.append(self.scale.without_vector(c))

    def add_constant(self, c: Float[Tensor, " d_model"]) -> None:
        self.along.append((self._vectors @ c).double()[self._row][None])
        self.after.append(self.scale.without_constant(c))

    def add_heads(
        self, z: Float[Tensor, "batch pos width"], w_o: Float[Tensor, "head d_head d_model"]
    ) -> None:
        z = self._flat(z)
        along = (self._vectors @ w_o.flatten(0, 1).T)[self._row].mul_(z)
        self.along.append(along.unflatten(1, w_o.shape[:2]).sum(-1).double().T)
        self.after.append(self.scale.without_heads(z, w_o))

    def _flat(self, x: Float[Tensor, "batch pos width"]) -> Float[Tensor, "token width"]:
        return x.flatten(0, 1).to(self.dtype)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a, b).double()
