"""How far a queue is, read from its files without touching any of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from normlens.training.family import Run, Scheme, runs_in_order
from normlens.training.outcome import read_outcome, read_progress

RECENT_SECONDS = 120.0
"""A run that was heard of since then counts as being trained."""


@dataclass(frozen=True)
class RunStatus:
    """One run.

    Attributes:
        label: scheme and learning rate or seed.
        state: waiting, training (heard of in the last two minutes), stopped, done or
            diverged.
        step: steps done.
        steps: of the whole run.
        loss: running training loss, nats/token; NaN before the first step.
        held_out_loss: last one known, nats/token; NaN before.
        tokens_per_second: NaN before the first step.
        seconds_left: at that speed; NaN where it is not known, 0 for a run that ended.
        tokens_left: to train.
        remark: why it diverged.
    """

    label: str
    state: Literal["waiting", "training", "stopped", "done", "diverged"]
    step: int
    steps: int
    loss: float
    held_out_loss: float
    tokens_per_second: float
    seconds_left: float
    tokens_left: int
    remark: str


@dataclass(frozen=True)
class QueueStatus:
    """Every run in order, and the time left for all at the present speed.

    ``seconds_left`` divides the tokens left by the speed of all runs being trained, of the
    last one where none is; NaN before the first.
    """

    runs: tuple[RunStatus, ...]
    seconds_left: float


def queue_status(schemes: Sequence[Scheme]) -> QueueStatus:
    """Read the state of every run.

    Raises:
        StoreMismatch: a record cannot be read.
    """
    of = {scheme.recipe.name: scheme for scheme in schemes}
    runs = tuple(_status(of[run.scheme], run) for run in runs_in_order(schemes))
    speeds = [run.tokens_per_second for run in runs if run.state == "training"]
    known = [run.tokens_per_second for run in runs if not math.isnan(run.tokens_per_second)]
    left = sum(run.tokens_left for run in runs)
    speed = sum(speeds) or (known[-1] if known else math.nan)
    return QueueStatus(runs, left / speed if left else 0.0)


def _status(scheme: Scheme, run: Run) -> RunStatus:
    steps = (scheme.recipe if run.lr is None else scheme.points[run.lr]).steps
    per_step = scheme.recipe.batch_size * scheme.context
    outcome, reached = read_outcome(run.directory), read_progress(run.directory)
    last = outcome or reached
    step = reached.step if reached else 0
    speed = reached.tokens_per_second if reached else math.nan
    left = 0 if outcome else (steps - step) * per_step
    if outcome:
        state = outcome.status
    elif reached is None:
        state = "waiting"
    else:
        state = "training" if time.time() - reached.time < RECENT_SECONDS else "stopped"
    return RunStatus(
        label=run.label,
        state=state,
        step=step,
        steps=steps,
        loss=reached.loss if reached else math.nan,
        held_out_loss=last.held_out_loss if last else math.nan,
        tokens_per_second=speed,
        seconds_left=left / speed if left else 0.0,
        tokens_left=left,
        remark=outcome.reason if outcome else "",
    )
