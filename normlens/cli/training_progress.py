"""What training shows: a live line on a terminal, a line an evaluation in a log file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from normlens.cli.tables import console
from normlens.training.estimate import Estimate
from normlens.training.loop import Progress as TrainingProgress
from normlens.training.recipe import Recipe


@contextmanager
def training_progress(name: str) -> Iterator[Callable[[TrainingProgress], None]]:
    """Yield what the trainer calls after each step; writes to stderr."""
    stderr = Console(stderr=True, highlight=False)
    bars = Progress(
        TextColumn(escape(name)),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
        console=stderr,
        disable=not stderr.is_terminal,
    )
    task = bars.add_task(name, total=None, numbers="")
    shown = math.nan

    def report(now: TrainingProgress) -> None:
        nonlocal shown
        bars.update(task, total=now.steps, completed=now.step, numbers=_numbers(now))
        evaluated = now.held_out_loss != shown and not math.isnan(now.held_out_loss)
        if evaluated and not stderr.is_terminal:
            stderr.print(f"{escape(name)} {now.step}/{now.steps} {_numbers(now)}", soft_wrap=True)
        shown = now.held_out_loss

    with bars:
        yield report


def print_estimate(recipe: Recipe, found: Estimate) -> None:
    """Print the cost of a run and when each scale is frozen."""
    out = console()
    out.print(
        f"{escape(recipe.name)}: {found.parameters:,} parameters; {found.steps:,} steps of "
        f"{found.tokens_per_step:,} tokens, {found.tokens:,} tokens in all, "
        f"{found.epochs:.2f} passes over {found.training_windows:,} sequences"
    )
    out.print(
        f"about {_duration(found.seconds)} ({found.step_seconds:.2f} s a step, one step timed); "
        f"memory {found.peak_bytes / 1e6:,.0f} MB"
    )
    for freeze in found.freezes:
        out.print(f"step {freeze.step:5d}  freeze {freeze.site}")


def _numbers(now: TrainingProgress) -> str:
    parts = [f"loss {now.loss:.3f}"]
    if not math.isnan(now.held_out_loss):
        parts.append(f"held-out {now.held_out_loss:.3f}")
    if now.live_scales:
        parts.append(f"live scales {now.live_scales}")
    return ", ".join([*parts, f"{now.tokens_per_second:,.0f} tokens/s"])


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
