"""From a recipe and a text to a model directory."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock, Timeout

from normlens.errors import OutputError
from normlens.models.export import write_model
from normlens.text import Documents
from normlens.training.job import Job, prepare
from normlens.training.loop import Progress, train
from normlens.training.objective import evaluate
from normlens.training.recipe import Recipe
from normlens.training.text import TrainingText

MODEL_DIRECTORY = "model"
LOCK = ".lock"


def run_recipe(
    recipe: Recipe,
    text: TrainingText,
    run: Path,
    *,
    held_out: Documents | None = None,
    device: str = "cpu",
    command: str | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> Path:
    """Run ``recipe`` on ``text`` in directory ``run``; returns the model directory.

    Interrupted at any moment, the same call goes on from the last checkpoint and ends with
    the same bytes as an unbroken run, on one kind of processor and with one number of
    threads.

    Args:
        recipe: what to do.
        text: what to train on.
        run: directory of checkpoint, log and model.
        held_out: what to evaluate on; by default the bundled held-out excerpts.
        device: where to train.
        command: recorded on the model's card; by default the ``normlens train`` command.
        report: called after every step.

    Raises:
        OutputError: ``run`` cannot be written, or another process trains in it.
        StoreMismatch: ``run`` belongs to another recipe, corpus or ancestor.
        TrainingDiverged: the loss left the rails.
        UsageError: as :func:`~normlens.training.job.prepare`.
        LoadError: as :func:`~normlens.training.job.prepare`.
    """
    with _claimed(run):
        job = prepare(recipe, text, held_out=held_out, device=device)
        train(recipe, job.model, job.stream, job.held_out, run, job.identity, report)
        out = run / MODEL_DIRECTORY
        card = _card(job, command or f"normlens train {recipe.name} {job.option} --out RUN")
        write_model(job.model, job.tokenizer, out, card=card, replace=True)
    return out


@contextmanager
def _claimed(run: Path) -> Iterator[None]:
    """Make ``run`` and keep other processes out of it."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = FileLock(run / LOCK)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise OutputError(
            f"another process trains in {run}; wait for it or choose another --out"
        ) from error
    except OSError as error:
        raise OutputError(
            f"cannot write to {run}: {error.strerror}; choose another --out"
        ) from error
    try:
        _remove_temporaries(run)
        yield
    finally:
        lock.release()


def _remove_temporaries(run: Path) -> None:
    """Remove what a killed run was writing; the lock says that nobody writes it now."""
    for path in run.glob(".*.tmp"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _card(job: Job, command: str) -> dict[str, object]:
    recipe = job.recipe
    loss = evaluate(job.model, job.held_out, recipe.batch_size)
    return {
        "name": recipe.name,
        "purpose": recipe.purpose,
        "command": command,
        "ancestor": recipe.ancestor,
        "ancestor_sha256": job.identity["ancestor"] or None,
        "recipe_sha256": job.identity["recipe"],
        "corpus_sha256": job.identity["corpus"],
        "training_tokens": recipe.steps * recipe.batch_size * job.context,
        "held_out_loss_nats_per_token": round(loss, 6),
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")}
        | {"python": platform.python_version()},
    }
