"""The CSV log of a training run: one row a step, flushed, cut back on resume."""

from __future__ import annotations

import csv
from pathlib import Path
from types import TracebackType
from typing import TextIO

from normlens.atomic import atomic_file

COLUMNS: tuple[str, ...] = (
    "step", "loss", "auxiliary", "gradient_norm", "lr", "live_scales", "held_out_loss",
)  # fmt: skip


class TrainingLog:
    """A log that is open for appending; a context manager.

    Args:
        path: the CSV file; created, or cut back to the rows that are kept.
        keep_below: rows of this step and later are dropped, as the interrupted run that
            wrote them will be repeated from here.
        writes: False for a process that only reads what was kept, and whose rows another
            one writes.
    """

    def __init__(self, path: Path, *, keep_below: int, writes: bool = True) -> None:
        self._kept = _whole_rows(path, keep_below) if keep_below else []
        self._file: TextIO | None = None
        if writes:
            self._open(path)

    def _open(self, path: Path) -> None:
        with (
            atomic_file(path) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(self._kept)
        self._file = path.open("a", newline="", encoding="utf-8")

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def kept(self, column: str) -> list[float]:
        """Values of a column in the rows that were kept when opening."""
        return [float(row[column]) for row in self._kept]

    def write(self, **row: int | float) -> None:
        """Append one row, in a process that writes."""
        if self._file is not None:
            csv.DictWriter(self._file, COLUMNS).writerow(row)
            self._file.flush()


def _whole_rows(path: Path, keep_below: int) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        # A killed run can leave a last row with fields missing.
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    return [row for row in rows if int(row["step"]) < keep_below]
