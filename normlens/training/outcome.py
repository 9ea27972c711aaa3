"""What a queue remembers of each run, in files beside it.

``outcome.json`` ends a run: it is done, or it diverged. ``progress.json`` says how far a run
is and is replaced as it goes on. ``diverged/lr-<rate>`` keeps the log of each attempt at a rate
that turned out too high.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from normlens.atomic import atomic_directory, atomic_file
from normlens.errors import OutputError, StoreMismatch
from normlens.training.record import LOG, RECORD

OUTCOME = "outcome.json"
PROGRESS = "progress.json"
DIVERGED = "diverged"


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: done or diverged; a diverged run is not tried again.
        held_out_loss: at the end, nats/token; NaN where it diverged.
        reason: why it diverged, else empty.
        recipe_sha256: digest of the recipe that was run.
        corpus_sha256: of the text it was run on.
    """

    status: Literal["done", "diverged"]
    held_out_loss: float
    reason: str
    recipe_sha256: str
    corpus_sha256: str


@dataclass(frozen=True)
class Reached:
    """How far a run is.

    Attributes:
        step: steps done.
        steps: of the whole run.
        loss: running training loss, nats/token.
        held_out_loss: of the last evaluation, nats/token; NaN before the first.
        tokens_per_second: since the process that trains it started doing so.
        tokens_per_step: BOS included.
        time: when that was, seconds since the epoch.
    """

    step: int
    steps: int
    loss: float
    held_out_loss: float
    tokens_per_second: float
    tokens_per_step: int
    time: float


RecordT = TypeVar("RecordT", Outcome, Reached)


def write_record(run: Path, name: str, record: Outcome | Reached) -> None:
    """Write a record into the directory of a run, atomically.

    Raises:
        OutputError: it cannot be written.
    """
    fields = {key: _finite(value) for key, value in dataclasses.asdict(record).items()}
    with atomic_file(run / name) as temporary:
        temporary.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def read_outcome(run: Path) -> Outcome | None:
    """How the run in a directory ended; None before it did.

    Raises:
        StoreMismatch: the record cannot be read.
    """
    return _read(run / OUTCOME, Outcome)


def read_progress(run: Path) -> Reached | None:
    """How far the run in a directory is; None before it began.

    Raises:
        StoreMismatch: the record cannot be read.
    """
    return _read(run / PROGRESS, Reached)


def diverged_rates(run: Path) -> tuple[float, ...]:
    """Learning rates at which the run in a directory diverged, in ascending order."""
    found = (run / DIVERGED).glob("lr-*")
    return tuple(sorted(float(path.name.removeprefix("lr-")) for path in found))


def set_aside(run: Path, lr: float) -> None:
    """Make room for another attempt: keep the log of the one at ``lr``, drop its checkpoint.

    Raises:
        OutputError: the directory cannot be written.
    """
    # Imported here: checkpoints need torch, and a queue's state is read without it.
    from normlens.training.checkpoint import FILE_NAME

    kept = run / DIVERGED / f"lr-{lr!r}"
    try:
        with atomic_directory(kept, replace=True) as temporary:
            shutil.copy(run / LOG, temporary / LOG)
        for name in (LOG, RECORD, PROGRESS, FILE_NAME):
            (run / name).unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {kept}: {error.strerror}; free it or its disk") from error


def _read(path: Path, kind: type[RecordT]) -> RecordT | None:
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fields: dict[str, Any] = {k: math.nan if v is None else v for k, v in stored.items()}
        return kind(**fields)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise StoreMismatch(f"{path} cannot be read ({error}); delete it") from error


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
