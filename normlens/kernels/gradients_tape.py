"""One forward and backward pass of one sequence, with the gradients that were asked for.

The residual before block 0 is detached and becomes the leaf: nothing before it is
differentiated. Norms on the residual stream get their input through an identity of their
own, so that the gradient behind it is the norm's alone, ``J^T g``, without what flows past
it along the residual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from normlens.capture.tree import plain_tree, run_model
from normlens.hooks import Hook, hooked
from normlens.kernels.alignment import widen
from normlens.kernels.residual_roles import ON_RESIDUAL
from normlens.models.blocks import block_modules
from normlens.models.families import family_of
from normlens.models.lens import Lens, NormSite
from normlens.text.sequences import Batch


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of the summed next-token loss of one sequence, at least float32.

    Attributes:
        loss: the sum, nats.
        residual: at each point, the residual stream.
        by_residual: its gradient.
        by_norm_input: by site label, ``J^T g``: through the norm alone.
        by_norm_output: by site label, ``g``.
        by_parameter: by name, where parameters require a gradient.
    """

    loss: Tensor
    residual: Sequence[Float[Tensor, "pos d_model"]]
    by_residual: Sequence[Float[Tensor, "pos d_model"]]
    by_norm_input: Mapping[str, Float[Tensor, "pos d_model"]]
    by_norm_output: Mapping[str, Float[Tensor, "pos d_model"]]
    by_parameter: Mapping[str, Tensor]


def norms_on_residual(lens: Lens) -> tuple[NormSite, ...]:
    """Norms of vectors of the residual's width, in order of execution."""
    return tuple(site for site in lens.sites if site.role in ON_RESIDUAL)


def differentiate(twin: Lens, one: Batch) -> Gradients:
    """Gradients of one sequence without padding.

    Args:
        twin: a lens whose model may be hooked and whose parameters require a gradient where
            one is wanted.
        one: the sequence.
    """
    points: list[Tensor] = []
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    blocks = block_modules(twin.model)
    hooks = [Hook(blocks[0], "input", _Leaf(points), "block 0")]
    hooks += [Hook(block, "input", _Keep(points), "block") for block in blocks[1:]]
    hooks.append(Hook(blocks[-1], "output", _Keep(points), "last block"))
    for site in norms_on_residual(twin):
        module = twin.module(site)
        hooks.append(Hook(module, "input", _Apart(inputs, site.label), site.label))
        hooks.append(Hook(module, "output", _Name(outputs, site.label), site.label))
    parameters = {n: p for n, p in twin.model.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        with hooked(twin.model, hooks):
            loss = summed_loss(twin, one)
        wanted = [*points, *inputs.values(), *outputs.values(), *parameters.values()]
        found = iter(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))
    return Gradients(
        loss=loss.detach(),
        residual=[widen(x.detach()[0]) for x in points],
        by_residual=[widen(next(found)[0]) for _ in points],
        by_norm_input=_named(inputs, found),
        by_norm_output=_named(outputs, found),
        by_parameter={name: widen(next(found)) for name in parameters},
    )


def summed_loss(lens: Lens, one: Batch) -> Tensor:
    """Summed next-token cross-entropy of one sequence without padding, nats."""
    logits = run_model(plain_tree(lens), one, logits=True)
    assert logits is not None, "logits were asked for"
    return cross_entropy(widen(logits[0, :-1]), one.ids[0, 1:], reduction="sum")


def step_error(twin: Lens, one: Batch, found: Gradients, fraction: float) -> float:
    """How far a step along the gradient before block 0 changes the loss otherwise than said.

    ``|(L(x + h u) - L(x - h u)) - 2 h |G|| / (2 h |G|)`` with ``u = G / |G|`` over the whole
    sequence and h such that ``2 h |G|`` is ``fraction`` of the loss.
    """
    gradient = found.by_residual[0]
    size = gradient.norm()
    predicted = fraction * found.loss
    step = (predicted / (2 * size.square()) * gradient)[None]
    block = block_modules(twin.model)[0]
    with torch.no_grad():
        losses: list[Tensor] = []
        for sign in (1.0, -1.0):
            with hooked(twin.model, [Hook(block, "input", _Shift(sign * step), "block 0")]):
                losses.append(summed_loss(twin, one).double())
    return float(((losses[0] - losses[1]) - predicted).abs() / predicted)


def _named(kept: Mapping[str, Tensor], found: Iterator[Tensor]) -> dict[str, Tensor]:
    # Some norms see the tokens of all sequences along one axis.
    return {label: widen(next(found).flatten(0, -2)) for label in kept}


@dataclass(frozen=True)
class _Keep:
    into: list[Tensor] = field(repr=False)

    def __call__(self, x: Tensor) -> None:
        self.into.append(x)


@dataclass(frozen=True)
class _Leaf:
    into: list[Tensor] = field(repr=False)

    def __call__(self, x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        self.into.append(leaf)
        return leaf


@dataclass(frozen=True)
class _Apart:
    into: dict[str, Tensor] = field(repr=False)
    label: str

    def __call__(self, x: Tensor) -> Tensor:
        self.into[self.label] = x.view_as(x)
        return self.into[self.label]


@dataclass(frozen=True)
class _Name:
    into: dict[str, Tensor] = field(repr=False)
    label: str

    def __call__(self, y: Tensor) -> None:
        self.into[self.label] = y


@dataclass(frozen=True)
class _Shift:
    by: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.by.to(x.dtype)


def block_parameters(twin: Lens) -> Mapping[tuple[int, str], Sequence[tuple[str, nn.Parameter]]]:
    """Parameters by block and part: ``norms``, ``attention`` or ``mlp`` (all else)."""
    family = family_of(twin.model)
    norms = tuple(f"{site.path}." for site in twin.sites)
    parts: dict[tuple[int, str], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in twin.model.named_parameters():
        if not name.startswith(f"{family.blocks}."):
            continue
        index, _, inner = name.removeprefix(f"{family.blocks}.").partition(".")
        if name.startswith(norms):
            part = "norms"
        else:
            part = "attention" if inner.startswith(f"{family.attention}.") else "mlp"
        parts.setdefault((int(index), part), []).append((name, parameter))
    return parts
