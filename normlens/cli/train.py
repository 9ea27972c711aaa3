"""``normlens train`` and ``prepare-corpus``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from normlens.cli.training_options import TrainingOptions, training_text
from normlens.errors import UsageError

if TYPE_CHECKING:
    from normlens.training.recipe import Recipe


def register(app: App) -> None:
    """Add the commands."""
    app.command(train)
    app.command(prepare_corpus)


def train(
    recipe: str,
    *,
    out: Path | None = None,
    steps: int | None = None,
    options: TrainingOptions | None = None,
) -> int:
    """Train a model by a recipe; the same command goes on where it was interrupted.

    A recipe is a TOML file that says everything that decides the weights. The run directory
    gets log.csv (one row a step), run.json (the recipe), the last checkpoint, and at the end
    model/, which every other command opens.

    Examples: `normlens train books-ln --books BOOKS --dry-run` for the cost, then
    `normlens train books-ln --books BOOKS --out runs/books-ln`.

    `normlens train my.toml --text a.txt b.jsonl --out runs/mine`

    Parameters
    ----------
    recipe
        Name of a bundled recipe, or a .toml file.
    out
        Run directory.
    steps
        Only that many steps, as a trial: another recipe with a schedule of its own.
    """
    from normlens.training.recipe import load_recipe

    options = options or TrainingOptions()
    chosen = load_recipe(recipe)
    if steps is not None:
        chosen = chosen.changed(steps=steps)
    trial = "" if steps is None else f" --steps {steps}"
    return carry_out(chosen, out, options, f"normlens train {Path(recipe).name}{trial}")


def prepare_corpus(books: Path, *, out: Path) -> int:
    """Make the held-out excerpts and the tokenizers from the books again, to the byte.

    Example: `normlens prepare-corpus BOOKS --out data`

    Parameters
    ----------
    books
        Directory of books named by Gutenberg id (16.txt).
    out
        Gets text/books-held-out.jsonl, tokenizer/ and tokenizer-512/; existing ones are
        replaced.
    """
    from normlens.training.corpus import prepare_corpus as prepare

    for path in prepare(books, out):
        print(path)
    return 0


def carry_out(recipe: Recipe, out: Path | None, options: TrainingOptions, command: str) -> int:
    """Run a recipe, or with ``options.dry_run`` say what it costs; returns the exit code."""
    import torch

    from normlens.cli.training_progress import print_estimate, training_progress
    from normlens.text import read_documents

    text = training_text(options)
    if options.threads is not None:
        if options.threads < 1:
            raise UsageError(f"--threads is {options.threads}; give 1 or more")
        torch.set_num_threads(options.threads)
    held_out = read_documents(str(options.held_out)) if options.held_out else None
    if options.dry_run:
        from normlens.training.estimate import estimate
        from normlens.training.job import prepare

        job = prepare(recipe, text, held_out=held_out, device=options.device)
        print_estimate(recipe, estimate(job))
        return 0
    if out is None:
        raise UsageError("--out is missing; name a run directory, or pass --dry-run")

    from normlens.training.replicas import replicas
    from normlens.training.run import run_recipe

    first = replicas(options.device).first
    with training_progress(recipe.name, shown=first) as report:
        model = run_recipe(
            recipe,
            text,
            out,
            held_out=held_out,
            device=options.device,
            command=f"{command} {text.option} --out RUN",
            report=report,
        )
    if first:
        print(model)
    return 0
