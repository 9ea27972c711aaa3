"""What the points of a sweep came to, and ``sweep.json``, which says so."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from normlens.atomic import atomic_file
from normlens.training.family import Scheme
from normlens.training.outcome import read_outcome
from normlens.training.sweep import chosen_rate

SWEEP = "sweep.json"


def sweep_losses(scheme: Scheme) -> dict[float, float]:
    """Held-out loss in nats/token by learning rate, of the points that have ended.

    A point that diverged has an infinite loss.
    """
    ended = {run.lr: read_outcome(run.directory) for run in scheme.sweep}
    return {
        lr: math.inf if found.status == "diverged" else found.held_out_loss
        for lr, found in ended.items()
        if lr is not None and found is not None
    }


def as_points(losses: Mapping[float, float]) -> list[dict[str, float | None]]:
    """For JSON: rate and held-out loss in nats/token, null where the point diverged."""
    return [
        {"lr": lr, "held_out_loss": loss if math.isfinite(loss) else None}
        for lr, loss in losses.items()
    ]


def record_sweep(scheme: Scheme) -> None:
    """Write ``sweep.json`` into the scheme's directory once every point has ended.

    Raises:
        OutputError: it cannot be written.
    """
    losses = sweep_losses(scheme)
    if len(losses) < len(scheme.sweep):
        return
    content = {
        "scheme": scheme.recipe.name,
        "recipe_sha256": scheme.recipe.digest(),
        "tokens": None if scheme.recipe.sweep is None else scheme.recipe.sweep.tokens,
        "points": as_points(losses),
        "lr": chosen_rate(losses),
    }
    with atomic_file(scheme.directory / SWEEP) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
