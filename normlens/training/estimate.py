"""What a training run would cost, measured on one step; nothing is written."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass

import torch

from normlens.training.job import Job
from normlens.training.removal_sites import removal_switches
from normlens.training.schedule import Freeze, freezes
from normlens.training.trainer import Trainer


@dataclass(frozen=True)
class Estimate:
    """Size and cost of a run.

    Attributes:
        parameters: of the model.
        steps: of the recipe.
        tokens_per_step: BOS included.
        tokens: of the whole run.
        training_windows: sequences that the text yields.
        epochs: passes over them.
        step_seconds: duration of one step.
        seconds: that, for every step.
        peak_bytes: largest memory of the process up to and including the step, on a GPU
            that of the tensors.
        freezes: when each scale is frozen; empty where nothing is removed.
    """

    parameters: int
    steps: int
    tokens_per_step: int
    tokens: int
    training_windows: int
    epochs: float
    step_seconds: float
    seconds: float
    peak_bytes: int
    freezes: tuple[Freeze, ...]


def estimate(job: Job) -> Estimate:
    """Train one step of ``job``, which is spent by that, and scale it up."""
    recipe = job.recipe
    removal = recipe.removal
    events = freezes(removal, removal_switches(job.model)) if removal is not None else ()
    device = next(job.model.parameters()).device
    ids = job.stream.batch(0).to(device)
    trainer = Trainer(recipe, job.model)
    job.model.train()
    started = time.monotonic()
    trainer.prepare(0)
    trainer.gradients(ids)
    trainer.update()
    seconds = time.monotonic() - started
    return Estimate(
        parameters=job.model.num_parameters(),
        steps=recipe.steps,
        tokens_per_step=job.stream.tokens_per_step,
        tokens=recipe.steps * job.stream.tokens_per_step,
        training_windows=len(job.stream.windows),
        epochs=recipe.steps * recipe.batch_size / len(job.stream.windows),
        step_seconds=seconds,
        seconds=recipe.steps * seconds,
        peak_bytes=_peak_bytes(device),
        freezes=events,
    )


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
