"""Throughput of ``normlens train`` against a bare torch loop on the same model.

Both train the decoder of a recipe of the family on the same batches, in one process and
alternating: the bare loop makes a step whenever the trainer reports one. The trainer's time
is all that passes between two reports: drawing the batch, the schedule, the step, the log.
Evaluation and checkpoint are timed once, at the last step, and spread over the steps between
two of them in the recipe. Ratios are medians of 5 steps after a warm-up of 2.

    python benchmarks/training_throughput.py [RECIPE] [DEVICE]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from baselines.bare_training import BareLoop
from rich.console import Console
from rich.table import Table

from normlens.resources import data_path
from normlens.training.initialise import initialised
from normlens.training.job import Job, prepare
from normlens.training.loop import Progress, train
from normlens.training.recipe import load_recipe
from normlens.training.text import texts

WARM_UP, STEPS = 2, 5
TARGET = 0.9


@dataclass
class Alternation:
    """Called by the trainer after each of its steps; makes a bare one and times both."""

    job: Job
    bare: BareLoop
    trainer_seconds: list[float] = field(default_factory=list)
    bare_seconds: list[float] = field(default_factory=list)
    resumed: float = field(default_factory=time.perf_counter)

    def __call__(self, now: Progress) -> None:
        self.trainer_seconds.append(time.perf_counter() - self.resumed)
        started = time.perf_counter()
        ids = self.job.stream.batch(now.step - 1).to(next(self.job.model.parameters()).device)
        self.bare.step(ids)
        _synchronise()
        self.bare_seconds.append(time.perf_counter() - started)
        self.resumed = time.perf_counter()


def main() -> None:
    name, device = (*sys.argv[1:], *("ln-gelu", "cpu")[len(sys.argv) - 1 :])
    torch.set_num_threads(1)
    full = load_recipe(name)
    count = WARM_UP + STEPS + 1
    recipe = full.changed(steps=count, evaluate_every=count, checkpoint_every=count)
    text = texts([data_path("text", "books-held-out.jsonl")])
    job = prepare(recipe, text, device=device)
    other = initialised(recipe).model
    torch.nn.Module.to(other, device)
    other.train()
    bare = BareLoop(other, recipe.micro_batch or recipe.batch_size, recipe.optimizer.lr)
    with tempfile.TemporaryDirectory() as run:
        both = Alternation(job, bare)
        train(recipe, job.model, job.stream, job.held_out, Path(run), job.identity, both)
    steps = statistics.median(both.trainer_seconds[WARM_UP:-1])
    bare_steps = statistics.median(both.bare_seconds[WARM_UP:-1])
    extra = both.trainer_seconds[-1] - steps
    shared = extra / min(full.evaluate_every, full.checkpoint_every)

    tokens = job.stream.tokens_per_step
    table = Table(title=f"{name} on {device}, one thread, {tokens:,} tokens a step")
    for column in ("", "seconds a step", "tokens/s", "of the bare loop"):
        table.add_column(column, justify="left" if not column else "right")
    for label, seconds in (
        ("bare torch loop", bare_steps),
        ("trainer", steps),
        ("trainer with evaluation and checkpoints", steps + shared),
    ):
        share = bare_steps / seconds
        table.add_row(label, f"{seconds:.3f}", f"{tokens / seconds:,.0f}", f"{share:.1%}")
    Console(width=110).print(table)
    print(f"evaluation and checkpoint: {extra:.2f} s together; target: {TARGET:.0%}")
    if bare_steps / (steps + shared) < TARGET:
        raise SystemExit(f"training is slower than {TARGET:.0%} of the bare loop")


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
