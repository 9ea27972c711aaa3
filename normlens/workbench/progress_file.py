"""How far a run is, as a small JSON file that another process reads. No torch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from normlens.atomic import atomic_file

if TYPE_CHECKING:
    from normlens.capture.shards import Report, Step

State = Literal["running", "done", "failed", "cancelled"]
SMALLEST_GAP = 0.2
"""Seconds between two writes of one pass, but for its first and last step."""


@dataclass(frozen=True)
class Progress:
    """The content of the file.

    Attributes:
        state: ``running`` until the run ends in one of the other ways.
        model: which is being opened or run; empty before the first.
        step: what is done to it: ``opening``, ``pass`` (the pass that all streaming analyses
            share) or the label of a procedure's own pass.
        done: sequences of the step that are done.
        total: sequences of the step.
        tokens: of the sequences that are done.
        seconds: since the run began.
        message: why it failed, in one line; otherwise empty.
    """

    state: State = "running"
    model: str = ""
    step: str = "opening"
    done: int = 0
    total: int = 0
    tokens: int = 0
    seconds: float = 0.0
    message: str = ""


class ProgressFile:
    """Writes :class:`Progress` to a file, whole at every moment."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._began = clock()
        self._written_at = -SMALLEST_GAP
        self._now = Progress()
        self._write()

    def opening(self, model: str) -> None:
        """A model is being opened."""
        self._now = Progress(model=model)
        self._write()

    def reporter(self, model: str) -> Report:
        """What a run of one model calls after every shard."""
        return _Reporter(self, model)

    def show(self, model: str, step: Step) -> None:
        """A step of a model is done."""
        same = (self._now.model, self._now.step) == (model, step.label)
        self._now = Progress(
            model=model,
            step=step.label,
            done=step.sequences,
            total=step.total_sequences,
            tokens=step.tokens,
        )
        soon = self._clock() - self._written_at < SMALLEST_GAP
        if not (same and soon and step.sequences < step.total_sequences):
            self._write()

    def end(self, state: State, message: str = "") -> None:
        """The run is over."""
        self._now = replace(self._now, state=state, message=" ".join(message.split()))
        self._write()

    def _write(self) -> None:
        self._written_at = self._clock()
        now = replace(self._now, seconds=round(self._written_at - self._began, 3))
        with atomic_file(self._path) as temporary:
            temporary.write_text(json.dumps(asdict(now)) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class _Reporter:
    file: ProgressFile
    model: str

    def __call__(self, step: Step) -> None:
        self.file.show(self.model, step)


def read_progress(path: Path) -> Progress | None:
    """The content of a progress file; None where there is none yet."""
    try:
        return Progress(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):
        return None
