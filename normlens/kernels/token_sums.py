"""Sums of several measures over the tokens of a group, with bootstrap replicates of some.

For a group called ``name`` the State holds ``n.name`` and ``overflow.name [*place]``,
``sums.name [measure *place]`` and ``replicates.name [replicate 1+chosen *place]``, whose
first entry is the weighted count. A token one of whose measures is not finite at a place is
counted as overflow there and left out of everything else.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from normlens.capture.state import State


def declare_token_sums(
    state: State,
    name: str,
    places: tuple[int, ...],
    *,
    measures: int,
    bootstrapped: int,
    replicates: int,
) -> None:
    """Add the statistics of one group, all zero."""
    state.declare(f"n.{name}", torch.zeros(places, dtype=torch.int64))
    state.declare(f"overflow.{name}", torch.zeros(places, dtype=torch.int64))
    state.declare(f"sums.{name}", torch.zeros(measures, *places, dtype=torch.float64))
    shape = (replicates, 1 + bootstrapped, *places)
    state.declare(f"replicates.{name}", torch.zeros(shape, dtype=torch.float64))


def add_token_sums(
    state: State,
    name: str,
    members: Bool[Tensor, "batch pos"],
    values: Float[Tensor, "measure *place batch pos"],
    bootstrapped: slice,
    weights: Float[Tensor, "replicate batch"],
    at: Int[Tensor, " some"] | None = None,
) -> Bool[Tensor, "*place batch pos"]:
    """Add one batch.

    Args:
        state: with the declarations of :func:`declare_token_sums`.
        name: of the group.
        members: its tokens.
        values: float64, on the CPU.
        bootstrapped: the measures that get replicates.
        weights: of the bootstrap.
        at: which of the places the values belong to, along a single axis of places; None:
            to all of them.

    Returns:
        Which tokens count at which place.
    """
    counted = members & values.isfinite().all(0)
    count = counted.sum(-1)  # [*place batch]
    _add(state, f"n.{name}", count.sum(-1), at)
    _add(state, f"overflow.{name}", members.sum() - count.sum(-1), at)
    per_sequence = torch.where(counted, values, 0.0).sum(-1)
    _add(state, f"sums.{name}", per_sequence.sum(-1), at)
    paired = torch.cat([count[None].double(), per_sequence[bootstrapped]])
    replicates = torch.einsum("rb,m...b->rm...", weights, paired)
    _add(state, f"replicates.{name}", replicates, at)
    return counted


def _add(state: State, name: str, value: Tensor, at: Tensor | None) -> None:
    state.add(name, value if at is None else spread(value, at, state.tensors[name].shape[-1]))


def spread(
    values: Shaped[Tensor, "*lead some"], at: Int[Tensor, " some"], places: int, neutral: float = 0
) -> Shaped[Tensor, "*lead place"]:
    """Values of some places among all, with the neutral value at every other place."""
    whole = values.new_full((*values.shape[:-1], places), neutral)
    whole[..., at] = values
    return whole
