"""Corpus runs in processes of their own: started, watched, cancelled; they outlive the app.

A job is a directory ``store/jobs/<id>`` with ``order.json``, ``job.json``, ``progress.json``
and ``log.txt``. Its process leads a process group and holds a lock on ``lock``, which it was
given open and locked, so the lock is held from before the process exists until all of its
group that have the file are gone. Whether a job runs is thus known after a restart of the
app, and no reused process id is ever mistaken for it. POSIX; no torch.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from normlens.atomic import atomic_file
from normlens.errors import OutputError, UsageError
from normlens.workbench.choices import CorpusChoice, ModelChoice
from normlens.workbench.job_order import ORDER, PROGRESS, order_of
from normlens.workbench.progress_file import Progress, State, read_progress
from normlens.workbench.sources import Sources

GRACE_SECONDS = 1.5
"""How long a cancelled run may take to end by itself."""

KILL_SECONDS = 10.0
"""How long to wait for a killed process to be gone; a process in the kernel's hands may stay."""

POLL_SECONDS = 0.02
LOG_TAIL = 4000
WORKER = "normlens.workbench.job_work"
"""Module that does a job; it is given the directory."""


@dataclass(frozen=True)
class Job:
    """A corpus run.

    Attributes:
        id: name of its directory, sorted by start.
        directory: where it is described.
        pid: leader of its process group.
        command: that does the same, as typed.
        names: the analyses.
        started: seconds since 1970.
    """

    id: str
    directory: Path
    pid: int
    command: str
    names: tuple[str, ...] = ()
    started: float = 0.0


@dataclass(frozen=True)
class JobStatus:
    """How far a job is.

    Attributes:
        state: ``running``, ``done``, ``failed`` or ``cancelled``.
        model: being opened or run.
        step: what is done to it, in words.
        done: sequences of the step that are done.
        total: sequences of the step; 0 where it has none.
        seconds: since the run began.
        message: why it failed, one line.
        log: the end of what it printed.
    """

    state: State
    model: str
    step: str
    done: int
    total: int
    seconds: float
    message: str
    log: str


def start(
    names: Sequence[str],
    choices: Sequence[ModelChoice],
    corpus: CorpusChoice,
    *,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    store: Path,
    sources: Sources | None = None,
    reference: ModelChoice | None = None,
    fresh: bool = False,
    batch_size: int = 16,
) -> Job:
    """Start a run; results go to ``store`` as they are made.

    Args:
        names: analyses; those that are stored already are not run again.
        choices: the slots; the first is the reference.
        corpus: what is read.
        parameters: by analysis name; fields that are left out take their defaults.
        store: directory of results and jobs.
        sources: what ids mean and what may be opened.
        reference: what analyses that compare set the models against, if not the first.
        fresh: compute again what is stored.
        batch_size: sequences per forward pass.

    Raises:
        UnknownName: no such analysis.
        UsageError: no analysis or model, or bad parameters.
        ModelNotFound: a model may not be opened, or does not exist.
        OutputError: the store cannot be written.
    """
    if not names or not choices:
        raise UsageError("a run needs an analysis and a model; choose at least one of each")
    sources = sources or Sources()
    resolved = [sources.resolve(choice.source) for choice in choices]
    order = replace(
        order_of(names, choices, resolved, corpus, parameters or {}, store),
        reference=reference and replace(reference, source=sources.resolve(reference.source)),
        fresh=fresh,
        batch_size=batch_size,
    )
    id = f"{time.time_ns():019d}-{secrets.token_hex(3)}"
    directory = store / "jobs" / id
    try:
        directory.mkdir(parents=True)
        (directory / ORDER).write_text(order.to_json(), encoding="utf-8")
        pid = _spawn(directory)
    except OSError as error:
        raise OutputError(
            f"cannot start a run in {directory}: {error.strerror}; choose a writable --results"
        ) from error
    job = Job(id, directory, pid, order.command, order.names, time.time())
    with atomic_file(directory / "job.json") as temporary:
        temporary.write_text(json.dumps(asdict(job), default=str) + "\n", encoding="utf-8")
    return job


def status(job: Job) -> JobStatus:
    """How far a job is, from its directory alone."""
    # Asked first: a run that ends in between has then written its last word.
    alive = _alive(job)
    now = read_progress(job.directory / PROGRESS) or Progress(step="starting")
    if now.state == "running" and not alive:
        if (job.directory / "cancelled").exists():
            now = replace(now, state="cancelled")
        else:
            message = "the run ended without a word; it may have been killed for memory"
            now = replace(now, state="failed", message=message)
    return JobStatus(
        now.state, now.model, _words(now.step), now.done, now.total, now.seconds, now.message,
        _log_tail(job.directory / "log.txt"),
    )  # fmt: skip


def cancel(job: Job) -> None:
    """End a job and return when it is gone; what it stored stays.

    The group is asked to terminate, and killed if it has not ended after
    :data:`GRACE_SECONDS`. A job that has ended is left as it is.

    Raises:
        OutputError: it does not go away, or its directory cannot be written.
    """
    if not _alive(job):
        return
    try:
        (job.directory / "cancelled").touch()
    except OSError as error:
        raise OutputError(f"cannot write to {job.directory}: {error.strerror}") from error
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        # While the lock is held the group exists, and its id cannot be another's.
        with suppress(ProcessLookupError):
            os.killpg(job.pid, number)
        if _gone_within(job, seconds):
            return
    raise OutputError(f"process {job.pid} does not end; end it by hand: kill -9 -{job.pid}")


def jobs(store: Path, limit: int = 20) -> list[Job]:
    """The jobs that were started last, newest first; also those of an earlier app."""
    found: list[Job] = []
    for directory in sorted((store / "jobs").glob("*/"), reverse=True):
        if len(found) == limit:
            break
        try:
            about = json.loads((directory / "job.json").read_text(encoding="utf-8"))
            found.append(
                Job(
                    directory.name,
                    directory,
                    about["pid"],
                    about["command"],
                    tuple(about["names"]),
                    about["started"],
                )
            )
        except (OSError, KeyError, TypeError, ValueError):
            continue
    return found


def _spawn(directory: Path) -> int:
    lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (directory / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER, str(directory.resolve())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
            )
    finally:
        # The child has the file open: the lock is its own from here on.
        os.close(lock)
    # Waited for, or it would stay a zombie for as long as the app runs.
    threading.Thread(target=process.wait, name=f"job {directory.name}", daemon=True).start()
    return process.pid


def _alive(job: Job) -> bool:
    try:
        lock = os.open(job.directory / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        # Shared, so that two who ask at once do not take each other for the job.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _gone_within(job: Job, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _alive(job):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _words(step: str) -> str:
    known = {"pass": "reading the text", "starting": "starting Python", "opening": "opening"}
    return known.get(step, step)


def _log_tail(path: Path) -> str:
    try:
        return path.read_bytes()[-LOG_TAIL:].decode("utf-8", "replace")
    except OSError:
        return ""
