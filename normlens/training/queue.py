"""A resumable queue of training runs that several processes may work on.

1. Runs are taken in order of importance: the first that is neither finished, nor waiting for
   its sweep, nor claimed by another process. A claim is a file lock, so it ends with its
   process however that ends, and whoever claims the run next resumes it.
2. A point of a sweep that diverged is recorded and not tried again; its loss counts as infinite.
   A whole run that diverged is begun again at the best of the lower rates, with its log kept;
   where none is left, or every point of the sweep diverged, it is recorded as diverged.
3. A run that cannot be carried out for another reason is left, and reported at the end.
4. A process waits while others hold what is left, since one of them may be killed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from normlens.errors import NormlensError, OutputError, StoreMismatch, TrainingDiverged
from normlens.text import Documents
from normlens.training.checkpoint import FILE_NAME
from normlens.training.claim import claimed
from normlens.training.family import Run, Scheme, runs_in_order
from normlens.training.loop import Progress
from normlens.training.outcome import (
    OUTCOME,
    PROGRESS,
    Outcome,
    Reached,
    diverged_rates,
    read_outcome,
    set_aside,
    write_record,
)
from normlens.training.recipe import Recipe
from normlens.training.run import run_recipe
from normlens.training.stream import Windows
from normlens.training.sweep import chosen_rate
from normlens.training.sweep_record import as_points, record_sweep, sweep_losses
from normlens.training.text import TrainingText

CLAIM = ".claim"
WAIT_SECONDS = 5.0
PROGRESS_SECONDS = 10.0


@dataclass
class Queue:
    """Schemes to train, and what is shared by all of them.

    Attributes:
        schemes: most important first.
        text: what to train on.
        held_out: what to evaluate on; None for the bundled excerpts.
        device: where to train.
        command: that works on the queue, for the models' cards; ``{scheme}`` and ``{seed}``
            are filled in.
        report: called with the run and its progress after every step.
        announce: called with a line when a run begins or ends.
    """

    schemes: Sequence[Scheme]
    text: TrainingText
    held_out: Documents | None = None
    device: str = "cpu"
    command: str = "normlens family {scheme} --seeds {seed}"
    report: Callable[[Run, Progress], None] = lambda run, progress: None
    announce: Callable[[str], None] = lambda line: None
    _windows: Windows = field(default_factory=Windows)

    def work(self) -> dict[str, str]:
        """Carry out runs until none is left; returns those that failed, with the reason.

        Raises:
            OutputError: a directory cannot be written.
            StoreMismatch: a directory holds another recipe's run.
        """
        failed: dict[str, str] = {}
        while True:
            left = [run for run in runs_in_order(self.schemes) if run.label not in failed]
            left = [run for run in left if self._outcome(run) is None]
            if not left:
                return failed
            if not any(self._take(run, failed) for run in left):
                time.sleep(WAIT_SECONDS)

    def _take(self, run: Run, failed: dict[str, str]) -> bool:
        """Whether ``run`` was free and ready, and is carried out now."""
        scheme = self._scheme(run)
        if run.lr is None and any(read_outcome(p.directory) is None for p in scheme.sweep):
            stuck = [point.label for point in scheme.sweep if point.label in failed]
            if stuck:
                failed[run.label] = f"{stuck[0]} failed"
            return bool(stuck)
        with claimed(run.directory, CLAIM) as mine:
            if not mine or read_outcome(run.directory) is not None:
                return False
            try:
                write_record(run.directory, OUTCOME, self._carry_out(scheme, run))
            except (OutputError, StoreMismatch):
                raise
            except NormlensError as error:
                failed[run.label] = str(error)
                self.announce(f"{run.label} failed: {error}")
        if run.lr is not None:
            record_sweep(scheme)
        return True

    def _carry_out(self, scheme: Scheme, run: Run) -> Outcome:
        whole = run.lr is None and bool(scheme.sweep)
        losses, tried = sweep_losses(scheme), diverged_rates(run.directory)
        lr = chosen_rate(losses, tried) if whole else None
        recipe = scheme.recipe_of(run, lr)
        digests = recipe.digest(), self.text.sha256
        if whole and lr is None:
            reason = "every learning rate of the sweep diverged"
            self.announce(f"{run.label} is not trained: {reason}")
            return Outcome("diverged", math.nan, reason, *digests)
        notes = {"sweep": as_points(losses), "diverged": list(tried)} if whole else {}
        self.announce(f"{run.label} begins" + (f" again at lr {lr:g}" if tried else ""))
        try:
            model = run_recipe(
                recipe,
                self.text,
                run.directory,
                held_out=self.held_out,
                device=self.device,
                command=self.command.format(scheme=run.scheme, seed=run.seed),
                notes=notes,
                windows=self._windows,
                report=_Recorder(run, recipe, scheme.context, self.report),
            )
        except TrainingDiverged as error:
            self.announce(f"{run.label} diverged: {error}")
            if lr is None:
                return Outcome("diverged", math.nan, str(error), *digests)
            set_aside(run.directory, lr)
            return self._carry_out(scheme, run)
        card = json.loads((model / "normlens.json").read_text(encoding="utf-8"))
        loss = card["held_out_loss_nats_per_token"]
        if run.lr is not None:
            # A point of a sweep is never continued; its log and its model stay.
            (run.directory / FILE_NAME).unlink()
        self.announce(f"{run.label} is done, held-out loss {loss:.4f}")
        return Outcome("done", loss, "", *digests)

    def _outcome(self, run: Run) -> Outcome | None:
        """The outcome of a run, which must be of this queue's recipe and text."""
        found = read_outcome(run.directory)
        if found is None:
            return None
        scheme = self._scheme(run)
        tried = diverged_rates(run.directory)
        lr = None if run.lr is not None else chosen_rate(sweep_losses(scheme), tried)
        digests = (scheme.recipe_of(run, lr).digest(), self.text.sha256)
        if (found.recipe_sha256, found.corpus_sha256) != digests:
            raise StoreMismatch(
                f"{run.directory} holds a run of another recipe or text; choose another --out or "
                "delete it"
            )
        return found

    def _scheme(self, run: Run) -> Scheme:
        return next(scheme for scheme in self.schemes if scheme.recipe.name == run.scheme)


@dataclass
class _Recorder:
    """Writes down how far a run is, some seconds apart, and passes it on."""

    run: Run
    recipe: Recipe
    context: int
    report: Callable[[Run, Progress], None]
    written: float = 0.0

    def __call__(self, now: Progress) -> None:
        self.report(self.run, now)
        if time.monotonic() < self.written + PROGRESS_SECONDS and now.step < now.steps:
            return
        self.written = time.monotonic()
        reached = Reached(
            step=now.step,
            steps=now.steps,
            loss=now.loss,
            held_out_loss=now.held_out_loss,
            tokens_per_second=now.tokens_per_second,
            tokens_per_step=self.recipe.batch_size * self.context,
            time=time.time(),
        )
        write_record(self.run.directory, PROGRESS, reached)
