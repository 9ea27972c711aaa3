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

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2LMHeadModel

from normlens.errors import TrainingDiverged
from normlens.hooks import Hook, hooked
from normlens.training.checkpoint import FILE_NAME, load_checkpoint, save_checkpoint
from normlens.training.log import TrainingLog
from normlens.training.recipe import AuxiliaryScaleLoss, Optimizer, Recipe
from normlens.training.removal import NormRemoval
from normlens.training.stream import TokenStream

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


@dataclass(frozen=True)
class StepLosses:
    """One step's losses in nats/token and the gradient norm before clipping."""

    loss: float
    auxiliary: float
    gradient_norm: float


class Trainer:
    """Model, optimizer and removal of one run; prepare, gradients, update make one step.

    Args:
        recipe: what to do.
        model: the initialised or ancestor model, float32, on the device to train on.
    """

    def __init__(self, recipe: Recipe, model: GPT2LMHeadModel) -> None:
        self.recipe = recipe
        self.model = model
        self._eps = model.transformer.ln_f.eps
        self._removal = NormRemoval(model, recipe.removal) if recipe.removal else None
        self.optimizer = _adamw(model, recipe.optimizer)

    def prepare(self, step: int) -> int:
        """Set the norms and the learning rate for ``step``; returns the live scales."""
        live = self._removal.advance(step) if self._removal else 0
        rate = learning_rate(step, self.recipe.steps, self.recipe.optimizer)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return live

    def gradients(self, ids: Int[Tensor, "batch pos"]) -> StepLosses:
        """Losses of a batch; leaves clipped gradients on the parameters."""
        loss, auxiliary = self._losses(ids)
        (loss + auxiliary).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.clip)
        return StepLosses(loss.item(), auxiliary.item(), norm.item())

    def update(self) -> None:
        """Apply the gradients and let the removal observe the last forward pass."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self._removal:
            self._removal.observe()

    def finish(self) -> None:
        """Exchange removed norms for fixed ones; the model is then in eval mode."""
        if self._removal:
            self._removal.finish()
        self.model.eval()

    def _losses(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        if self.recipe.auxiliary is None:
            return next_token_loss(self.model, ids), torch.zeros(())
        seen: list[Tensor] = []
        final = Hook(self.model.transformer.ln_f, "input", seen.append, "final norm")
        with hooked(self.model, [final]):
            loss = next_token_loss(self.model, ids)
        return loss, auxiliary_scale_loss(seen[0], self._eps, self.recipe.auxiliary)


def train(
    recipe: Recipe,
    model: GPT2LMHeadModel,
    stream: TokenStream,
    held_out: Int[Tensor, "batch pos"],
    run: Path,
    identity: dict[str, str],
    report: Callable[[Progress], None] = lambda _: None,
) -> None:
    """Train ``model`` in place to the end of ``recipe``, resuming from ``run`` if it can.

    Args:
        recipe: what to do.
        model: the initialised or ancestor model, float32, on the device to train on.
        stream: batches by step.
        held_out: sequences for the running evaluation.
        run: directory of checkpoint and log.
        identity: what a checkpoint must agree on to be resumed (recipe, corpus, ancestor).
        report: called after every step.

    Raises:
        TrainingDiverged: see the module docstring.
        StoreMismatch: ``run`` holds a checkpoint of another run.
        OutputError: ``run`` cannot be written.
    """
    trainer = Trainer(recipe, model)
    done = load_checkpoint(run, model, trainer.optimizer, identity)
    device = next(model.parameters()).device
    started = time.monotonic()
    model.train()
    with TrainingLog(run / "log.csv", keep_below=done) as log:
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
            if (step + 1) % recipe.checkpoint_every == 0 or last:
                save_checkpoint(run, model, trainer.optimizer, {**identity, "step": step + 1})
            tokens = (step + 1 - done) * stream.tokens_per_step
            speed = tokens / (time.monotonic() - started)
            report(Progress(step + 1, recipe.steps, running, evaluation, speed, live))
    trainer.finish()


def learning_rate(step: int, steps: int, optimizer: Optimizer) -> float:
    """Linear warm-up to ``lr``, then a cosine to ``final_lr_fraction * lr`` at the last step."""
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / optimizer.warmup_steps
    done = (step - optimizer.warmup_steps) / max(1, steps - 1 - optimizer.warmup_steps)
    floor = optimizer.final_lr_fraction
    return optimizer.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def auxiliary_scale_loss(
    x: Float[Tensor, "batch pos width"], eps: float, auxiliary: AuxiliaryScaleLoss
) -> Float[Tensor, ""]:
    """``weight * mean_pos (scale_pos - target)**2`` of the final norm's input.

    ``scale_pos = sqrt(var + eps)`` over the last axis; ``target`` is its mean over
    positions from 1 on, without gradient. The units are those of ``x`` squared.

    Source: 2507.02559, auxiliary loss. There the target also leaves out end-of-text
    tokens; training sequences hold none but the first token.
    """
    scale = (x.var(-1, correction=0) + eps).sqrt()
    target = scale[:, 1:].detach().mean()
    return auxiliary.weight * (scale - target).square().mean()


def next_token_loss(model: nn.Module, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of positions 1.. given what precedes them, nats/token."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


@torch.inference_mode()
def evaluate(model: nn.Module, ids: Int[Tensor, "batch pos"], batch_size: int) -> float:
    """Mean next-token loss over ``ids``, nats/token; leaves the model in training mode."""
    model.eval()
    device = next(model.parameters()).device
    total = 0.0
    for chunk in ids.split(batch_size):
        total += next_token_loss(model, chunk.to(device)).item() * len(chunk)
    model.train()
    return total / len(ids)


def _adamw(model: nn.Module, options: Optimizer) -> torch.optim.AdamW:
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, fused=True)


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
