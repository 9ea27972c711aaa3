"""The family of normalization schemes: which runs there are, most important first.

A scheme is a recipe under ``data/recipes/family``. Its runs lie in
``<out>/<scheme>/sweep/lr-<rate>`` and ``<out>/<scheme>/seed-<seed>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlens.errors import NotApplicable, UsageError
from normlens.training.recipe import Recipe, load_recipe
from normlens.training.sweep import resolved, sweep_points

FAMILY = (
    "ln-gelu",
    "ln-relu",
    "none-gelu",
    "none-relu",
    "rms",
    "dyt",
    "post-ln",
    "sandwich",
    "qk-norm",
    "lns",
    "ngpt",
    "deep-pre",
    "deep-lns",
    "deep-sandwich",
    "deep-post",
)
"""Names of the bundled schemes, most important first."""


@dataclass(frozen=True)
class Run:
    """One run of a queue.

    Attributes:
        scheme: whose run it is.
        label: scheme and learning rate or seed, for tables.
        directory: where it lies.
        seed: of the initialisation.
        lr: of a point of a sweep; None for a run that uses the rate of the sweep.
    """

    scheme: str
    label: str
    directory: Path
    seed: int
    lr: float | None


@dataclass(frozen=True)
class Scheme:
    """One scheme.

    Attributes:
        recipe: with its sweep.
        directory: of all its runs.
        context: tokens per sequence.
        points: the short run of each learning rate.
        sweep: where those lie; empty without a sweep.
        full: the runs by seed.
    """

    recipe: Recipe
    directory: Path
    context: int
    points: dict[float, Recipe]
    sweep: tuple[Run, ...]
    full: tuple[Run, ...]

    def recipe_of(self, run: Run, chosen: float | None) -> Recipe:
        """What ``run`` does; ``chosen`` is the rate of the sweep, None where there is none."""
        if run.lr is not None:
            return self.points[run.lr]
        lr = self.recipe.optimizer.lr if chosen is None else chosen
        return resolved(self.recipe, lr=lr, seed=run.seed)


def schemes(names: Sequence[str], seeds: Sequence[int], out: Path) -> tuple[Scheme, ...]:
    """The schemes of a queue.

    Args:
        names: of bundled recipes or ``.toml`` files, most important first; the bundled
            :data:`FAMILY` where there are none.
        seeds: of the runs; each recipe's own where there are none.
        out: directory of the runs.

    Raises:
        UnknownName: no such recipe.
        UsageError: an invalid recipe, or two schemes or seeds of one name.
        NotApplicable: a recipe starts from an ancestor.
    """
    recipes = [load_recipe(name) for name in names or FAMILY]
    chosen: dict[str, list[Any]] = {"scheme": [r.name for r in recipes], "seed": list(seeds)}
    for what, values in chosen.items():
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise UsageError(f"{what} {twice[0]} is asked for twice; leave one out")
    return tuple(_scheme(recipe, seeds, out / recipe.name) for recipe in recipes)


def runs_in_order(found: Sequence[Scheme]) -> tuple[Run, ...]:
    """Every run, most important first: all schemes with the first seed before the next seed."""
    most = max((len(scheme.full) for scheme in found), default=0)
    first = [run for scheme in found for run in (*scheme.sweep, *scheme.full[:1])]
    others = [s.full[number] for number in range(1, most) for s in found if number < len(s.full)]
    return (*first, *others)


def context_of(recipe: Recipe) -> int:
    """Tokens per sequence of a recipe that initialises its model.

    Raises:
        NotApplicable: it starts from an ancestor.
    """
    if recipe.architecture is not None:
        return recipe.architecture.context
    if recipe.decoder is None:
        raise NotApplicable(
            f"recipe {recipe.name} starts from an ancestor, and the queue holds schemes that are "
            "trained from the start; use normlens train"
        )
    from normlens.training.initialise import decoder_config

    where = f"recipe {recipe.name}"
    return decoder_config(recipe.decoder, where=where).max_position_embeddings


def _scheme(recipe: Recipe, seeds: Sequence[int], directory: Path) -> Scheme:
    context = context_of(recipe)
    points = sweep_points(recipe, context)
    name = recipe.name
    sweep = [
        Run(name, f"{name} lr {lr:g}", directory / "sweep" / f"lr-{lr:g}", recipe.seed, lr)
        for lr in points
    ]
    full = [
        Run(name, f"{name} seed {seed}", directory / f"seed-{seed}", seed, None)
        for seed in seeds or (recipe.seed,)
    ]
    return Scheme(recipe, directory, context, points, tuple(sweep), tuple(full))
