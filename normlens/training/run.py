"""From a recipe and a text to a model directory."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path

from normlens.errors import OutputError
from normlens.models.export import write_model
from normlens.text import Documents
from normlens.training.claim import claimed
from normlens.training.job import Job, prepare
from normlens.training.loop import Progress, train
from normlens.training.objective import evaluate
from normlens.training.recipe import Recipe
from normlens.training.replicas import replicas
from normlens.training.stream import Windows
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
    notes: Mapping[str, object] | None = None,
    windows: Windows | None = None,
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
        notes: more entries of the card (what a sweep found).
        windows: of a process that makes several runs, so that they tokenise once.
        report: called after every step.

    Raises:
        OutputError: ``run`` cannot be written, or another process trains in it.
        StoreMismatch: ``run`` belongs to another recipe, corpus or ancestor.
        TrainingDiverged: the loss left the rails.
        UsageError: as :func:`~normlens.training.job.prepare`.
        LoadError: as :func:`~normlens.training.job.prepare`.
    """
    team = replicas(device)
    out = run / MODEL_DIRECTORY
    with _claimed(run) if team.first else nullcontext():
        job = prepare(recipe, text, held_out=held_out, device=team.device, windows=windows)
        train(recipe, job.model, job.stream, job.held_out, run, job.identity, report, team)
        if team.first:
            card = _card(job, command or f"normlens train {recipe.name} {job.option} --out RUN")
            write_model(job.model, job.tokenizer, out, card={**card, **(notes or {})}, replace=True)
    return out


@contextmanager
def _claimed(run: Path) -> Iterator[None]:
    """Keep other processes out of ``run``, and clear what a killed one was writing."""
    with claimed(run, LOCK) as mine:
        if not mine:
            raise OutputError(
                f"another process trains in {run}; wait for it or choose another --out"
            )
        _remove_temporaries(run)
        yield


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
        "lr": recipe.optimizer.lr,
        "seed": recipe.seed,
        "data_seed": recipe.data_seed,
        "training_tokens": recipe.steps * recipe.batch_size * job.context,
        "held_out_loss_nats_per_token": round(loss, 6),
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")}
        | {"python": platform.python_version()},
    }
