"""What training shows: a live line on a terminal, a line an evaluation in a log file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from normlens.cli.tables import console
from normlens.training.estimate import Estimate
from normlens.training.family import Run
from normlens.training.loop import Progress as TrainingProgress
from normlens.training.recipe import Recipe


@contextmanager
def training_progress(
    name: str, *, shown: bool = True
) -> Iterator[Callable[[TrainingProgress], None]]:
    """Yield what the trainer calls after each step; writes to stderr where ``shown``."""
    stderr = Console(stderr=True, highlight=False, quiet=not shown)
    bars = _bars(escape(name), stderr)
    task = bars.add_task(name, total=None, numbers="")
    last = math.nan

    def report(now: TrainingProgress) -> None:
        nonlocal last
        bars.update(task, total=now.steps, completed=now.step, numbers=_numbers(now))
        evaluated = now.held_out_loss != last and not math.isnan(now.held_out_loss)
        if evaluated and not stderr.is_terminal:
            stderr.print(f"{escape(name)} {now.step}/{now.steps} {_numbers(now)}", soft_wrap=True)
        last = now.held_out_loss

    with bars:
        yield report


class QueueProgress:
    """What a queue tells, on stderr: a bar for the run at hand, a line where one ends."""

    def __init__(self, bars: Progress, stderr: Console) -> None:
        self._bars = bars
        self._stderr = stderr
        self._task = bars.add_task("", total=None, numbers="", run="")
        self._evaluated = math.nan

    def announce(self, line: str) -> None:
        """Print a line, with the time of day: queues run for hours."""
        self._stderr.print(f"{datetime.now():%H:%M:%S} {escape(line)}", soft_wrap=True)

    def report(self, run: Run, now: TrainingProgress) -> None:
        """Show a step; outside a terminal, print each evaluation."""
        self._bars.update(
            self._task,
            total=now.steps,
            completed=now.step,
            numbers=_numbers(now),
            run=escape(run.label),
        )
        evaluated = now.held_out_loss != self._evaluated and not math.isnan(now.held_out_loss)
        if evaluated and not self._stderr.is_terminal:
            self.announce(f"{run.label} {now.step}/{now.steps} {_numbers(now)}")
        self._evaluated = now.held_out_loss


@contextmanager
def queue_progress() -> Iterator[QueueProgress]:
    """Yield what a queue calls; writes to stderr."""
    stderr = Console(stderr=True, highlight=False)
    bars = _bars("{task.fields[run]}", stderr)
    with bars:
        yield QueueProgress(bars, stderr)


def print_estimate(recipe: Recipe, found: Estimate) -> None:
    """Print the cost of a run and when each scale is frozen."""
    out = console()
    out.print(
        f"{escape(recipe.name)}: {found.parameters:,} parameters; {found.steps:,} steps of "
        f"{found.tokens_per_step:,} tokens, {found.tokens:,} tokens in all, "
        f"{found.epochs:.2f} passes over {found.training_windows:,} sequences"
    )
    out.print(
        f"about {duration(found.seconds)} ({found.step_seconds:.2f} s a step, one step timed); "
        f"memory {found.peak_bytes / 1e6:,.0f} MB"
    )
    for freeze in found.freezes:
        out.print(f"step {freeze.step:5d}  freeze {freeze.site}")


def _bars(name: str, stderr: Console) -> Progress:
    return Progress(
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
        console=stderr,
        disable=not stderr.is_terminal,
    )


def _numbers(now: TrainingProgress) -> str:
    parts = [f"loss {now.loss:.3f}"]
    if not math.isnan(now.held_out_loss):
        parts.append(f"held-out {now.held_out_loss:.3f}")
    if now.live_scales:
        parts.append(f"live scales {now.live_scales}")
    return ", ".join([*parts, f"{now.tokens_per_second:,.0f} tokens/s"])


def duration(seconds: float) -> str:
    """Minutes, or hours from two hours on; empty for NaN."""
    if math.isnan(seconds):
        return ""
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
