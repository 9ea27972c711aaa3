"""Replacing activations of one prompt by those of another, in a forward pass.

Every row of a batch is the same corrupted prompt under a patch of its own: a place puts the
clean activation in where its mask says so and leaves the rest as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.hooks import Hook, hooked
from normlens.models.components import ComponentView, forward
from normlens.models.components_view import LayerParts

KINDS = ("residual", "attention", "mlp")


@dataclass(frozen=True)
class Place:
    """An activation that can be replaced.

    Attributes:
        what: ``residual``, ``attention`` or ``mlp``: the stream, or what a branch adds to it.
        point: block; of the residual stream: before that block, or after the last one.
    """

    what: str
    point: int

    @property
    def name(self) -> str:
        """Unique among places."""
        return f"{self.what}.{self.point}"


Activations = Mapping[Place, Float[Tensor, "pos d_model"]]
Masks = Mapping[Place, Bool[Tensor, "row pos"]]


def places(layers: int) -> tuple[Place, ...]:
    """Every place of a model with that many blocks."""
    residual = [Place("residual", i) for i in range(layers + 1)]
    branches = [Place(what, i) for what in KINDS[1:] for i in range(layers)]
    return (*residual, *branches)


@torch.inference_mode()
def record(
    view: ComponentView, ids: Int[Tensor, "1 pos"]
) -> tuple[dict[Place, Float[Tensor, "pos d_model"]], Float[Tensor, "1 pos vocab"]]:
    """The activations of one prompt at every place, and its logits.

    Raises:
        HookMismatch: a module did not run exactly once.
    """
    kept: dict[Place, Tensor] = {}
    hooks = [_hook(view, place, _Keep(place, kept)) for place in places(view.n_layers)]
    with hooked(view.bridge, hooks):
        logits = forward(view, ids)
    assert logits is not None, "logits were asked for"
    return kept, logits


@torch.inference_mode()
def patched(
    view: ComponentView, ids: Int[Tensor, "row pos"], clean: Activations, masks: Masks
) -> Float[Tensor, "row pos vocab"]:
    """Logits under the patches of every row.

    Args:
        view: of the model.
        ids: the corrupted prompt, once for every row.
        clean: what is put in.
        masks: where; places that are not named are left alone.

    Raises:
        HookMismatch: a module did not run exactly once.
    """
    hooks = [_hook(view, place, _Put(mask, clean[place])) for place, mask in masks.items()]
    with hooked(view.bridge, hooks):
        logits = forward(view, ids)
    assert logits is not None, "logits were asked for"
    return logits


def _hook(view: ComponentView, place: Place, fn: _Keep | _Put) -> Hook:
    layers: Sequence[LayerParts] = view.layers
    match place.what:
        case "attention":
            return Hook(layers[place.point].attention_output, "output", fn, place.name)
        case "mlp":
            return Hook(layers[place.point].mlp_output, "output", fn, place.name)
        case _ if place.point < len(layers):
            return Hook(layers[place.point].block, "input", fn, place.name)
        case _:
            return Hook(layers[-1].block, "output", fn, place.name)


@dataclass(frozen=True)
class _Keep:
    place: Place
    into: dict[Place, Tensor]

    def __call__(self, x: Tensor) -> None:
        # A copy, since some blocks add to their branches in place.
        self.into[self.place] = x.reshape(-1, x.shape[-1]).clone()


@dataclass(frozen=True, eq=False)
class _Put:
    mask: Bool[Tensor, "row pos"]
    clean: Float[Tensor, "pos d_model"]

    def __call__(self, x: Tensor) -> Tensor:
        # Some linears see the tokens of all rows along one axis.
        by_row = x.reshape(*self.mask.shape, -1)
        return torch.where(self.mask[..., None], self.clean, by_row).reshape(x.shape)
