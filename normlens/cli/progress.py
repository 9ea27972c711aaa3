"""Progress bars on stderr: what is running, rate, time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from normlens.capture.shards import Report, Step


@contextmanager
def progress_bars() -> Iterator[Callable[[str], Report]]:
    """Yield a function from a model's name to a reporter; bars vanish on no terminal."""
    console = Console(stderr=True)
    bars = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    tasks: dict[tuple[str, str], TaskID] = {}

    def reporter(model: str) -> Report:
        def report(step: Step) -> None:
            key = (model, step.label)
            if key not in tasks:
                tasks[key] = bars.add_task(
                    f"{model} · {step.label}", total=step.total_sequences, rate=""
                )
            speed = bars.tasks[tasks[key]].speed
            per_sequence = step.tokens / max(1, step.sequences)
            rate = f"{speed * per_sequence:,.0f} tokens/s" if speed else ""
            bars.update(tasks[key], completed=step.sequences, rate=rate)

        return report

    with bars:
        yield reporter
