"""Progress bars on stderr, and the same in a file for another process to read."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
from normlens.workbench.progress_file import ProgressFile


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


@contextmanager
def watched_progress(path: Path | None) -> Iterator[Callable[[str], Report]]:
    """:func:`progress_bars`, also written to ``path``, which says in the end how it ended.

    With a file, a request to terminate ends the run as Ctrl+C does: what is being written is
    removed, what is stored stays.
    """
    with progress_bars() as bars:
        if path is None:
            yield bars
            return
        file = ProgressFile(path)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            yield _Both(bars, file)
        except KeyboardInterrupt:
            file.end("cancelled")
            raise
        except Exception as error:  # whoever reads the file must learn that the run has ended
            file.end("failed", str(error) or type(error).__name__)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
        file.end("done")


@dataclass(frozen=True)
class _Both:
    bars: Callable[[str], Report]
    file: ProgressFile

    def __call__(self, model: str) -> Report:
        return _Reports((self.bars(model), self.file.reporter(model)))


@dataclass(frozen=True)
class _Reports:
    reports: tuple[Report, ...]

    def __call__(self, step: Step) -> None:
        for report in self.reports:
            report(step)
