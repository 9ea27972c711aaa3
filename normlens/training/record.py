"""What a run directory says about itself, readable without torch.

``run.json`` holds the recipe and the scales that its removal freezes; ``log.csv`` one row a
step. Both are written by the trainer.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from normlens.atomic import atomic_file
from normlens.errors import LoadError, StoreMismatch
from normlens.training.log import COLUMNS
from normlens.training.recipe import Recipe
from normlens.training.schedule import Switch

RECORD = "run.json"
LOG = "log.csv"


@dataclass(frozen=True)
class RunRecord:
    """What is being run.

    Attributes:
        recipe: that decides the weights.
        switches: scales that its removal freezes, in order of execution; empty without one.
    """

    recipe: Recipe
    switches: tuple[Switch, ...] = ()


def write_run_record(run: Path, record: RunRecord) -> None:
    """Write ``run.json``, atomically.

    Raises:
        OutputError: it cannot be written.
    """
    fields = {
        "recipe": record.recipe.model_dump(mode="json", exclude_defaults=True),
        "switches": [asdict(switch) for switch in record.switches],
    }
    with atomic_file(run / RECORD) as temporary:
        temporary.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def read_run_record(run: Path) -> RunRecord | None:
    """What is run in a directory; None where no trainer has said so.

    Raises:
        StoreMismatch: the record cannot be read.
    """
    path = run / RECORD
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        recipe = Recipe.model_validate(stored["recipe"])
        return RunRecord(recipe, tuple(Switch(**switch) for switch in stored["switches"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise StoreMismatch(f"{path} cannot be read ({reason}); delete it") from error


def read_log(run: Path) -> pd.DataFrame:
    """The log of a run, one row a step; empty before the first.

    A row that is still being written is left out.

    Returns:
        Columns ``step`` (from 0), ``loss``, ``auxiliary`` and ``held_out_loss`` (nats/token;
        the last one known, NaN before the first), ``gradient_norm`` before clipping, ``lr``,
        and ``live_scales``.

    Raises:
        LoadError: there is no log, or it is not one that a trainer wrote.
    """
    path = run / LOG
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"log {path} cannot be read: {error}") from error
    head = ",".join(COLUMNS)
    if not lines or lines[0].strip() != head:
        raise LoadError(f"{path} is not the log of a training run: its first row is not {head}")
    rows = [line.split(",") for line in lines[1:] if line.endswith("\n")]
    rows = [row for row in rows if len(row) == len(COLUMNS)]
    try:
        values = [[float(value) for value in row] for row in rows]
    except ValueError as error:
        raise LoadError(f"log {path} holds something that is no number: {error}") from error
    table = pd.DataFrame(values, columns=list(COLUMNS), dtype="float64")
    return table.astype({"step": "int64", "live_scales": "int64"})
