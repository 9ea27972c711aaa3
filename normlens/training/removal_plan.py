"""The schedule of a removal as tables and as a page, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from normlens.atomic import atomic_file
from normlens.errors import OutputError
from normlens.figures.removal_plan import removal_plan
from normlens.training.recipe import Recipe
from normlens.training.schedule import (
    Switch,
    check_schedule,
    freezes,
    learning_rate,
    live_scales,
)


@dataclass(frozen=True)
class PlanTables:
    """A schedule in numbers.

    Attributes:
        freezes: one row per scale: step, scale, phase, layer, live_scales (from that step on),
            lr (of that step).
        steps: one row per step: step, live_scales, lr.
    """

    freezes: pd.DataFrame
    steps: pd.DataFrame


def plan_tables(recipe: Recipe, switches: Sequence[Switch]) -> PlanTables:
    """The schedule of a recipe with a removal for a model with these switches.

    Raises:
        UsageError: the schedule cannot be carried out.
    """
    plan = recipe.removal
    assert plan is not None
    check_schedule(plan, switches, recipe.steps)
    events = freezes(plan, switches)
    rows = [
        {
            "step": event.step,
            "scale": event.site,
            "phase": event.phase,
            "layer": float("nan") if event.layer is None else float(event.layer),
            "live_scales": live_scales(plan, switches, event.step),
            "lr": learning_rate(event.step, recipe.steps, recipe.optimizer),
        }
        for event in events
    ]
    steps = [
        {
            "step": step,
            "live_scales": live_scales(plan, switches, step),
            "lr": learning_rate(step, recipe.steps, recipe.optimizer),
        }
        for step in range(recipe.steps)
    ]
    return PlanTables(pd.DataFrame(rows), pd.DataFrame(steps))


def write_plan(tables: PlanTables, recipe: Recipe, path: Path, *, note: str = "") -> None:
    """Write the figure of a schedule as one HTML file that needs nothing else.

    Raises:
        OutputError: ``path`` cannot be written.
    """
    last = int(tables.freezes["step"].max())
    figure = removal_plan(
        tables.freezes,
        tables.steps,
        title=f"Removal schedule of {recipe.name}",
        note=f"{len(tables.freezes)} scales, the last frozen at step {last:,} of "
        f"{recipe.steps:,}. {note}".strip(),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            figure.write_html(temporary, include_plotlyjs=True)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another --out") from error
