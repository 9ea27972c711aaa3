"""``normlens train``, ``remove-norm`` and ``prepare-corpus``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from normlens.errors import UsageError

if TYPE_CHECKING:
    from normlens.training.recipe import Recipe
    from normlens.training.text import TrainingText

Flag = Parameter(negative=())
Files = Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative=())]


@Parameter(name="*")
@dataclass(frozen=True)
class TrainingOptions:
    """What is trained on, where, and whether it is only estimated."""

    books: Path | None = None
    """Directory of books named by Gutenberg id (16.txt); the held-out ones are left out."""
    text: Files = ()
    """Instead of books: .txt files (one document each), .jsonl files or directories."""
    held_out: Path | None = None
    """Text to evaluate on; by default the bundled held-out excerpts."""
    device: str = "cpu"
    """Torch device: cpu, cuda, cuda:1, mps."""
    threads: int | None = None
    """CPU threads; another number rounds differently."""
    dry_run: Annotated[bool, Flag] = False
    """Print tokens, steps, memory, time and schedule instead; nothing is written."""


def register(app: App) -> None:
    """Add the commands."""
    app.command(train)
    app.command(remove_norm)
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
    gets log.csv (one row a step), the last checkpoint, and at the end model/, which every
    other command opens.

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
    return _carry_out(chosen, out, options, f"normlens train {Path(recipe).name}{trial}")


def remove_norm(
    model: str,
    *,
    out: Path | None = None,
    recipe: str | None = None,
    control: Literal["vanilla", "aux"] | None = None,
    batch_size: int | None = None,
    context: int | None = None,
    options: TrainingOptions | None = None,
) -> int:
    """Fine-tune a GPT-2-type model while the scale of every norm is frozen, one by one.

    The result is scale-free: centring, gain and bias of each norm remain, and the division
    by the token's own standard deviation is a constant. MLP norms go first, then the q/k
    and the v paths of the attention norms, then the final norm; the default schedule
    follows from the number of layers. A comparison means something only beside a control
    trained on the same tokens in the same order: `--control vanilla` fine-tunes and removes
    nothing, `--control aux` adds the auxiliary scale loss alone.

    Examples: `normlens remove-norm books-ln --books BOOKS --dry-run` prints the schedule,
    `normlens remove-norm gpt2 --text web.jsonl --context 256 --out runs/gpt2-lnfree` makes
    the model, and the same with `--control vanilla --out runs/gpt2-control` its control.

    `normlens compare gpt2 runs/gpt2-control/model runs/gpt2-lnfree/model --out out/gpt2`

    Parameters
    ----------
    model
        Bundled id, model directory or hub id.
    out
        Run directory.
    recipe
        Another schedule and optimizer: a recipe with [removal], by name or .toml file.
    control
        Make this control instead.
    batch_size
        Sequences per step.
    context
        Tokens per sequence; by default the model's own context.
    """
    options = options or TrainingOptions()
    chosen = _removal_recipe(model, recipe, control)
    changes: dict[str, Any] = {"batch_size": batch_size, "context": context}
    chosen = chosen.changed(**{key: value for key, value in changes.items() if value is not None})
    command = f"normlens remove-norm {model}"
    for name, value in (("recipe", recipe), ("control", control), *changes.items()):
        if value is not None:
            command += f" --{name.replace('_', '-')} {value}"
    return _carry_out(chosen, out, options, command)


def prepare_corpus(books: Path, *, out: Path) -> int:
    """Make the held-out excerpts and the tokenizer from the books again, to the byte.

    Example: `normlens prepare-corpus BOOKS --out data`

    Parameters
    ----------
    books
        Directory of books named by Gutenberg id (16.txt).
    out
        Gets text/books-held-out.jsonl and tokenizer/; existing ones are replaced.
    """
    from normlens.training.corpus import prepare_corpus as prepare
    from normlens.training.recipe import load_recipe

    architecture = load_recipe("books-ln").architecture
    assert architecture is not None
    for path in prepare(books, out, architecture):
        print(path)
    return 0


def _removal_recipe(
    model: str, recipe: str | None, control: Literal["vanilla", "aux"] | None
) -> Recipe:
    from normlens.training.recipe import load_recipe
    from normlens.training.removal import removable_layers
    from normlens.training.schedule import control_recipe, removal_recipe
    from normlens.training.start import open_ancestor

    layers = removable_layers(open_ancestor(model).model)
    base = Path(model).name
    if recipe is None:
        chosen = removal_recipe(f"{base}-lnfree", model, layers)
    else:
        given = load_recipe(recipe)
        if given.removal is None:
            raise UsageError(f"recipe {recipe} has no [removal]; add one or leave --recipe out")
        chosen = given.changed(name=f"{base}-lnfree", ancestor=model, architecture=None)
    return chosen if control is None else control_recipe(chosen, f"{base}-{control}", control)


def _carry_out(recipe: Recipe, out: Path | None, options: TrainingOptions, command: str) -> int:
    import torch

    from normlens.cli.training_progress import print_estimate, training_progress
    from normlens.text import read_documents

    text = _training_text(options)
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

    from normlens.training.run import run_recipe

    with training_progress(recipe.name) as report:
        model = run_recipe(
            recipe,
            text,
            out,
            held_out=held_out,
            device=options.device,
            command=f"{command} {text.option} --out RUN",
            report=report,
        )
    print(model)
    return 0


def _training_text(options: TrainingOptions) -> TrainingText:
    from normlens.training.text import books, texts

    if options.books is not None and not options.text:
        return books(options.books)
    if options.text and options.books is None:
        return texts(options.text)
    raise UsageError("give exactly one of --books DIRECTORY and --text FILE...")
