"""Data-parallel training: several processes with one copy of the model each.

1. ``accelerate launch --num_processes 4 -m normlens train RECIPE ... --device cuda`` starts
   the processes; so does torchrun. They find each other through its environment.
2. A step's batch is dealt out, and each process weighs its losses by its share of the
   batch, so the gradients add up to those of the whole batch: a run gives the weights of one
   process up to rounding. A recipe says nothing about processes.
3. All processes evaluate; the first alone writes log, checkpoints and model.

Weights and moments are whole in every process: a model must fit on one device. The sum over
processes is tested on CPUs (gloo), not on several GPUs (nccl).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor, distributed

from normlens.errors import UsageError


@dataclass(frozen=True)
class Replicas:
    """The processes of one run, as one of them sees them.

    Attributes:
        rank: of this process, from 0.
        count: how many there are.
        device: torch device of this one.
    """

    rank: int
    count: int
    device: str

    @property
    def first(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def deal(self, ids: Int[Tensor, "batch pos"]) -> Int[Tensor, "share pos"]:
        """The sequences of a batch that are this process's.

        Raises:
            UsageError: there are fewer sequences than processes.
        """
        if len(ids) < self.count:
            raise UsageError(
                f"a batch of {len(ids)} sequences cannot be dealt to {self.count} processes; "
                "start fewer or raise batch_size"
            )
        return ids.tensor_split(self.count)[self.rank]

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the processes."""
        if self.count > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor)


def replicas(device: str) -> Replicas:
    """The processes that the environment speaks of, joined; one where it speaks of none.

    Args:
        device: as asked for; ``cuda`` becomes the GPU of each process.

    Raises:
        UsageError: several processes, but accelerate is not installed, or one GPU for all.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Replicas(0, 1, device)
    kind, _, index = device.partition(":")
    if index:
        raise UsageError(f"{count} processes cannot share {device}; pass --device {kind}")
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise UsageError(
            "training in several processes needs accelerate: pip install accelerate"
        ) from error
    # It picks nccl or gloo and the GPU of this process; a second call changes nothing.
    state = PartialState(cpu=kind == "cpu")
    return Replicas(state.process_index, state.num_processes, str(state.device))


def alone(device: torch.device) -> Replicas:
    """One process."""
    return Replicas(0, 1, str(device))
