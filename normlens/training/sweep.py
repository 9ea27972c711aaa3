"""Choosing a learning rate by short runs, and what that makes of a recipe.

1. Each rate of the sweep gets a run of its own over ``tokens`` tokens: same seed, same order
   of the data, a whole schedule (warm-up and decay shrink with the steps).
2. The rate with the lowest held-out loss is chosen, the lower rate where two are equal. A
   point that diverged counts as infinite; where all do, none is chosen.
3. The run itself uses that rate, for every seed. A run that diverges there is begun again with
   the best of the lower rates: a short run does not always show that a rate is too high.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from normlens.training.recipe import Recipe


def sweep_points(recipe: Recipe, context: int) -> dict[float, Recipe]:
    """The short run of each learning rate; empty for a recipe without a sweep.

    Args:
        recipe: with or without a sweep.
        context: tokens per sequence.
    """
    if recipe.sweep is None:
        return {}
    steps = max(1, round(recipe.sweep.tokens / (recipe.batch_size * context)))
    warmup = round(recipe.optimizer.warmup_steps * steps / recipe.steps)
    return {
        lr: recipe.changed(
            name=f"{recipe.name}-lr-{lr:g}",
            purpose=f"Point of the learning rate sweep of {recipe.name}.",
            sweep=None,
            steps=steps,
            optimizer={**recipe.optimizer.model_dump(), "lr": lr, "warmup_steps": warmup},
        )
        for lr in recipe.sweep.lr
    }


def chosen_rate(losses: Mapping[float, float], diverged: Collection[float] = ()) -> float | None:
    """The learning rate with the lowest held-out loss; None where none is left.

    Args:
        losses: held-out loss in nats/token by rate, infinite for a point that diverged.
        diverged: rates at which a whole run diverged; only lower ones are left.
    """
    below = min(diverged, default=math.inf)
    left = [(loss, lr) for lr, loss in losses.items() if math.isfinite(loss) and lr < below]
    return min(left)[1] if left else None


def resolved(recipe: Recipe, *, lr: float, seed: int) -> Recipe:
    """The run that a sweep leads to: that rate and seed, and no sweep any more."""
    optimizer = {**recipe.optimizer.model_dump(), "lr": lr}
    return recipe.changed(sweep=None, seed=seed, optimizer=optimizer)
