"""The trainer: one recipe, resumable to the step.

1. Batches are a function of the step, so resuming needs weights, moments and the step.
2. The loss is the mean next-token cross-entropy over every position after BOS (nats/token),
   plus the auxiliary scale loss where the recipe asks for it.
3. A non-finite loss or gradient, or a jump over the running loss by more than the
   recipe's margin, stops the run; the last checkpoint stays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from normlens.errors import TrainingDiverged
from normlens.training.checkpoint import FILE_NAME, load_checkpoint, save_checkpoint
from normlens.training.log import TrainingLog
from normlens.training.objective import evaluate
from normlens.training.recipe import Recipe
from normlens.training.record import LOG, RunRecord, write_run_record
from normlens.training.replicas import Replicas, alone
from normlens.training.stream import TokenStream
from normlens.training.trainer import StepLosses, Trainer

RUNNING_LOSS_DECAY = 0.95


@dataclass(frozen=True)
class Progress:
    """What the trainer tells after each step.

    Attributes:
        step: steps done.
        steps: steps of the whole run.
        loss: running mean of the training loss, nats/token.
        held_out_loss: of the last evaluation, nats/token; NaN before the first.
        tokens_per_second: since this process started training.
        live_scales: norm scales not yet frozen; 0 where nothing is removed.
    """

    step: int
    steps: int
    loss: float
    held_out_loss: float
    tokens_per_second: float
    live_scales: int


def train(
    recipe: Recipe,
    model: PreTrainedModel,
    stream: TokenStream,
    held_out: Int[Tensor, "batch pos"],
    run: Path,
    identity: dict[str, str],
    report: Callable[[Progress], None] = lambda _: None,
    replicas: Replicas | None = None,
) -> None:
    """Train ``model`` in place to the end of ``recipe``, resuming from ``run`` if it can.

    Args:
        recipe: what to do.
        model: the initialised or ancestor model, float32, on the device to train on.
        stream: batches by step.
        held_out: sequences for the running evaluation.
        run: directory of checkpoint, log and record.
        identity: what a checkpoint must agree on to be resumed (recipe, corpus, ancestor).
        report: called after every step.
        replicas: the processes that train copies of the model; by default this one alone.

    Raises:
        TrainingDiverged: see the module docstring.
        StoreMismatch: ``run`` holds a checkpoint of another run.
        OutputError: ``run`` cannot be written.
    """
    device = next(model.parameters()).device
    replicas = replicas or alone(device)
    trainer = Trainer(recipe, model, replicas)
    done = load_checkpoint(run, model, trainer.optimizer, identity)
    if replicas.first:
        write_run_record(run, RunRecord(recipe, trainer.switches))
    started = time.monotonic()
    model.train()
    with TrainingLog(run / LOG, keep_below=done, writes=replicas.first) as log:
        evaluation = (log.kept("held_out_loss") or [math.nan])[-1]
        running = _running_loss(log.kept("loss"))
        for step in range(done, recipe.steps):
            live = trainer.prepare(step)
            losses = trainer.gradients(stream.batch(step).to(device))
            _stop_if_diverged(step, losses, running, recipe, run)
            running = _running_loss([losses.loss], running)
            trainer.update()
            last = step + 1 == recipe.steps
            if (step + 1) % recipe.evaluate_every == 0 or last:
                evaluation = evaluate(model, held_out, recipe.batch_size)
            log.write(
                step=step,
                loss=losses.loss,
                auxiliary=losses.auxiliary,
                gradient_norm=losses.gradient_norm,
                lr=trainer.optimizer.param_groups[0]["lr"],
                live_scales=live,
                held_out_loss=evaluation,
            )
            if replicas.first and ((step + 1) % recipe.checkpoint_every == 0 or last):
                save_checkpoint(run, model, trainer.optimizer, {**identity, "step": step + 1})
            tokens = (step + 1 - done) * stream.tokens_per_step
            speed = tokens / (time.monotonic() - started)
            report(Progress(step + 1, recipe.steps, running, evaluation, speed, live))
    trainer.finish()


def _running_loss(losses: Iterable[float], start: float = math.nan) -> float:
    def fold(mean: float, loss: float) -> float:
        if math.isnan(mean):
            return loss
        return RUNNING_LOSS_DECAY * mean + (1 - RUNNING_LOSS_DECAY) * loss

    return reduce(fold, losses, start)


def _stop_if_diverged(
    step: int, losses: StepLosses, running: float, recipe: Recipe, run: Path
) -> None:
    finite = math.isfinite(losses.loss) and math.isfinite(losses.gradient_norm)
    if finite and not losses.loss > running + recipe.divergence_margin:
        return
    reason = (
        f"jumped from {running:.3f} to {losses.loss:.3f}"
        if finite
        else f"is {losses.loss} (gradient norm {losses.gradient_norm})"
    )
    kept = run / FILE_NAME
    where = f"the last good checkpoint is {kept}" if kept.is_file() else "no checkpoint was due yet"
    raise TrainingDiverged(
        f"{recipe.name}: the loss {reason} at step {step}; {where}; "
        "lower lr or lengthen the schedule"
    )
