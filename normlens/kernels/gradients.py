"""Kernel of ``gradients``: how large gradients are at every depth.

One forward and backward pass per sequence, in the model's dtype, on a structural copy whose
weights are the model's (:mod:`gradients_tape`).

1. With L the summed next-token loss of a sequence (its mean loss times its targets, so that
   the gradient at a token does not shrink with the sequence's length), per point of the
   residual stream and predicting token: ``|dL/dx|`` and ``|x| |dL/dx|``.
2. Per norm on the residual stream and predicting token: ``|J^T g| / |g|``.
3. Per block and part: the Frobenius norm of the gradient of the sequence's *mean* loss by its
   parameters, and that times the Frobenius norm of the parameters; mean over sequences.
4. float64 sums by token group; per sequence, weighted by the document's bootstrap weights.
5. Check, on the first sequence: a step along the gradient before block 0 changes the loss as
   predicted, by intervention.

``|x| |dL/dx|`` does not change with the scale of the residual (``x -> c x`` before a norm
makes the gradient ``1/c``). The last token of a sequence predicts nothing and is left out.

Sources: 2502.05795, section 3 (gradients by depth in pre-norm models); 2002.04745.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.protocol import Context, Finding, MapShards, Procedure
from normlens.capture.state import Reduction, State
from normlens.kernels.gradients_summary import GROUPS, Places, summarise
from normlens.kernels.gradients_tape import (
    Gradients,
    block_parameters,
    differentiate,
    norms_on_residual,
    step_error,
)
from normlens.models.blocks import block_modules
from normlens.models.copying import structural_copy
from normlens.models.lens import Lens
from normlens.text.sequences import Batch

STEP = 1e-3
"""Size of the checked step: this share of the loss."""

STEP_IN_HALF = 5e-2
"""The same in half precision, where a smaller change drowns in the loss's rounding."""


def _run(context: Context, map_shards: MapShards) -> Finding:
    twin = replace(context.lens, model=structural_copy(context.lens.model))
    parts = block_parameters(twin) if context.parameters.weights else {}
    for members in parts.values():
        for _, parameter in members:
            parameter.requires_grad_(True)
    places = Places(
        points=len(block_modules(twin.model)) + 1,
        sites=norms_on_residual(twin),
        parts={key: tuple(name for name, _ in members) for key, members in parts.items()},
    )
    sequences = context.sequences.spread(context.parameters.sequences)
    state = map_shards("gradients", sequences, _Measure(twin, places))
    return summarise(state, places, context.lens)


@dataclass(frozen=True)
class _Measure:
    """Gradients of every sequence of a batch, one after another, reduced."""

    twin: Lens
    places: Places

    def __call__(self, batch: Batch) -> State:
        state = self._empty(batch.weights.shape[0])
        for row, length in enumerate(batch.mask.sum(-1).tolist()):
            if length < 2:
                continue
            one = _sequence(batch, row, length)
            found = differentiate(self.twin, one)
            self._add(state, found, one)
            if int(one.index[0]) == 0:
                half = self.twin.placement.dtype in ("bfloat16", "float16")
                fraction = STEP_IN_HALF if half else STEP
                error = step_error(self.twin, one, found, fraction)
                state.add("step_error", torch.tensor(error))
        return state

    def _empty(self, replicates: int) -> State:
        state = State()
        for kind, measures, count in self.places.tables:
            shape = (len(GROUPS), count)
            state.declare(f"n.{kind}", torch.zeros(shape, dtype=torch.int64))
            state.declare(f"overflow.{kind}", torch.zeros(shape, dtype=torch.int64))
            sums = torch.zeros(measures, *shape, dtype=torch.float64)
            state.declare(f"sums.{kind}", sums)
            boot = torch.zeros(replicates, measures + 1, *shape, dtype=torch.float64)
            state.declare(f"replicates.{kind}", boot)
        state.declare("targets", torch.zeros(1, dtype=torch.int64))
        state.declare("step_error", torch.tensor(-math.inf).double(), Reduction.MAX)
        return state

    def _add(self, state: State, found: Gradients, one: Batch) -> None:
        gradient = torch.stack([g[:-1].norm(dim=-1) for g in found.by_residual])
        norm = torch.stack([x[:-1].norm(dim=-1) for x in found.residual])
        _add(state, "points", torch.stack([gradient, norm * gradient]), one)
        if self.places.sites:
            _add(state, "norms", self._attenuations(found)[None], one)
        targets = one.ids.shape[1] - 1
        state.add("targets", torch.tensor([targets]))
        if self.places.parts:
            _add(state, "parts", self._by_parameter(found, targets)[..., None], one)

    def _attenuations(self, found: Gradients) -> Float[Tensor, "site pos"]:
        labels = [site.label for site in self.places.sites]
        into = torch.stack([found.by_norm_input[label][:-1].norm(dim=-1) for label in labels])
        of = torch.stack([found.by_norm_output[label][:-1].norm(dim=-1) for label in labels])
        return into / of

    def _by_parameter(self, found: Gradients, targets: int) -> Float[Tensor, "2 part"]:
        weights = dict(self.twin.model.named_parameters())
        pairs: list[Tensor] = []
        for names in self.places.parts.values():
            gradient = _frobenius([found.by_parameter[name] for name in names]) / targets
            weight = _frobenius([weights[name].detach() for name in names])
            pairs.append(torch.stack([gradient, gradient * weight]))
        return torch.stack(pairs, 1)


def _add(state: State, kind: str, values: Float[Tensor, "measure place pos"], one: Batch) -> None:
    """Add one sequence: its first token to the first group, all others to the second.

    For parts of blocks there is one value per sequence, which goes to the first group.
    """
    values = values.cpu().double()
    finite = values.isfinite().all(0)  # [place pos]
    kept = torch.cat([torch.ones_like(values[:1]), torch.where(finite, values, 0.0)]) * finite
    total = torch.stack([kept[..., :1].sum(-1), kept[..., 1:].sum(-1)], 1)  # [measure group place]
    lost = torch.stack([(~finite[:, :1]).sum(-1), (~finite[:, 1:]).sum(-1)])
    state.add(f"n.{kind}", total[0].long())
    state.add(f"overflow.{kind}", lost)
    state.add(f"sums.{kind}", total[1:])
    boot = torch.einsum("r,mgp->rmgp", one.weights[:, 0], total)
    state.add(f"replicates.{kind}", boot)


def _frobenius(tensors: list[Tensor]) -> Tensor:
    return torch.stack([tensor.double().square().sum() for tensor in tensors]).sum().sqrt()


def _sequence(batch: Batch, row: int, length: int) -> Batch:
    rows, where = slice(row, row + 1), slice(length)
    return Batch(
        batch.ids[rows, where], batch.mask[rows, where], batch.first[rows, where],
        batch.rest[rows, where], batch.index[rows], batch.document[rows], batch.weights[:, rows],
    )  # fmt: skip


KERNEL = Procedure(run=_run)
"""What the runner looks up."""
