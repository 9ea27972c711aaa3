"""Training runs on disk: what there is, how far each is, its log and its schedule. No torch.

A run directory is one that holds the log of a trainer: of ``normlens train``, of
``normlens remove-norm``, or one run of ``normlens family``. The bundled models carry the logs
of their own training.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from normlens.errors import NormlensError
from normlens.resources import data_path
from normlens.training.log import COLUMNS
from normlens.training.manifest import CARD
from normlens.training.outcome import PROGRESS, read_outcome, read_progress
from normlens.training.queue_status import RECENT_SECONDS
from normlens.training.record import LOG, RunRecord, read_log, read_run_record
from normlens.training.removal_plan import PlanTables, plan_tables

Kind = Literal["training", "removal", "family"]
State = Literal["running", "stopped", "done", "diverged", "unreadable"]

DEEPEST = 6
"""Directories below a root that are searched for runs."""
MOST_RUNS = 500
MODEL_DIRECTORY = "model"
_TAIL_BYTES = 4096


@dataclass(frozen=True)
class TrainingRun:
    """One run.

    Attributes:
        name: its directory, relative to the root; of a bundled model the model's id.
        directory: where it lies.
        kind: ``removal`` freezes scales, ``family`` belongs to a queue of schemes.
        state: ``running`` where its log grew in the last two minutes and the end is not
            reached.
        step: steps done.
        steps: of the whole run; None where neither the trainer nor a queue wrote it down.
        updated: when its log was last written to, seconds since the epoch.
        held_out_loss: last one known, nats/token; NaN before.
        record: recipe and scales, None for a run of an earlier version.
        remark: why it diverged or cannot be read, else empty.
    """

    name: str
    directory: Path
    kind: Kind
    state: State
    step: int
    steps: int | None
    updated: float
    held_out_loss: float
    record: RunRecord | None
    remark: str = ""

    @property
    def removes(self) -> bool:
        """Whether it freezes scales."""
        return self.kind == "removal"

    @property
    def bundled(self) -> bool:
        """Whether the log came with the package."""
        return self.directory.parent == data_path("models")


def find_runs(roots: Sequence[Path]) -> tuple[TrainingRun, ...]:
    """Every run below the roots, last written first, at most :data:`MOST_RUNS`.

    A run that cannot be read is listed as such; directories that cannot be entered, links and
    hidden directories are passed over.
    """
    found = {
        directory.resolve(): directory.relative_to(root).as_posix()
        for root in roots
        for directory in _directories(root)
    }
    named = [(root.name if name == "." else name, root) for root, name in found.items()]
    runs = [describe_run(directory, name) for name, directory in named]
    return tuple(sorted(runs, key=lambda run: (-run.updated, run.name))[:MOST_RUNS])


def bundled_runs() -> tuple[TrainingRun, ...]:
    """The training of the bundled models, those that remove scales first."""
    models = data_path("models")
    runs = [describe_run(models / name.parent.name, name.parent.name) for name in _logs(models)]
    return tuple(sorted(runs, key=lambda run: (not run.removes, run.name)))


def describe_run(directory: Path, name: str) -> TrainingRun:
    """What a run directory says of itself; never fails, see :attr:`TrainingRun.state`."""
    path = directory / LOG
    try:
        updated = path.stat().st_mtime
        record, outcome = read_run_record(directory), read_outcome(directory)
        reached = read_progress(directory)
        first, last = _ends(path)
    except (NormlensError, OSError, ValueError) as error:
        return TrainingRun(
            name, directory, "training", "unreadable", 0, None, 0.0, float("nan"), None, str(error)
        )
    step = 0 if last is None else int(last["step"]) + 1
    steps = record.recipe.steps if record else reached.steps if reached else None
    finished = step == steps or _has_model(directory)
    state: State = "running" if time.time() - updated < RECENT_SECONDS else "stopped"
    state = outcome.status if outcome else "done" if finished else state
    removes = record.recipe.removal is not None if record else bool(first and first["live_scales"])
    return TrainingRun(
        name=name,
        directory=directory,
        kind="removal" if removes else "family" if (directory / PROGRESS).is_file() else "training",
        state=state,
        step=step,
        steps=step if steps is None and state == "done" else steps,
        updated=updated,
        held_out_loss=float("nan") if last is None else last["held_out_loss"],
        record=record,
        remark=outcome.reason if outcome else "",
    )


def run_log(run: TrainingRun) -> pd.DataFrame:
    """One row a step; see :func:`normlens.training.record.read_log`.

    Raises:
        LoadError: the log cannot be read.
    """
    return read_log(run.directory)


def run_schedule(run: TrainingRun) -> PlanTables | None:
    """Which scale is frozen when, planned to the end; None where nothing is removed.

    For a run of an earlier version, which wrote no record, the scales have no names and what
    lies ahead is not known: one row for every step at which the log's live scales drop.
    """
    if not run.removes:
        return None
    if run.record is not None:
        return plan_tables(run.record.recipe, run.record.switches)
    log = run_log(run)
    steps = log[["step", "live_scales", "lr"]]
    drop = -log["live_scales"].diff().fillna(0)
    rows = log.loc[log.index.repeat(drop.clip(lower=0).astype(int))]
    freezes = rows[["step", "live_scales", "lr"]].assign(
        scale="not recorded", phase="other", layer=float("nan")
    )
    return PlanTables(freezes.reset_index(drop=True), steps)


def _directories(root: Path) -> Iterator[Path]:
    """Directories with a log below ``root``; the order of names."""
    for path in _logs(root):
        yield path.parent


def _logs(root: Path) -> Iterator[Path]:
    for place, directories, files in os.walk(root):
        here = Path(place)
        depth = len(here.relative_to(root).parts)
        if depth >= DEEPEST:
            directories.clear()
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        if LOG in files and _is_log(here / LOG):
            yield here / LOG


def _is_log(path: Path) -> bool:
    """Whether the head is that of a trainer: other programs write files of that name too."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline(_TAIL_BYTES).strip() == ",".join(COLUMNS)
    except (OSError, UnicodeDecodeError):
        return False


def _ends(path: Path) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """First and last whole row of a log, read without what lies between."""
    with path.open("rb") as file:
        file.readline()
        first = _row(file.readline())
        start = file.tell()
        tail = file.seek(0, os.SEEK_END) - _TAIL_BYTES
        file.seek(max(start, tail))
        lines = file.readlines()
        # The tail begins somewhere within a row.
        rows = [row for row in map(_row, lines[tail > start :]) if row]
    return first, rows[-1] if rows else first


def _row(line: bytes) -> dict[str, float] | None:
    values = line.decode("utf-8").split(",")
    if not line.endswith(b"\n") or len(values) != len(COLUMNS):
        return None
    return {name: float(value) for name, value in zip(COLUMNS, values, strict=True)}


def _has_model(directory: Path) -> bool:
    return any((place / CARD).is_file() for place in (directory, directory / MODEL_DIRECTORY))
