"""The charts of training runs as Python, for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from normlens.workbench.runs import TrainingRun


def curves_code(runs: Mapping[str, TrainingRun]) -> str:
    """Python that draws the training curves of these runs, by the names they are shown under."""
    rows = [f"    {name!r}: read_log({_path(run)}),\n" for name, run in runs.items()]
    return (
        f"{_path_import(runs.values())}"
        "from normlens.figures.training import training_curves\n"
        "from normlens.training.record import read_log\n\n"
        "logs = {\n" + "".join(rows) + "}\n"
        "training_curves(logs)\n"
    )


def schedule_code(run: TrainingRun, title: str) -> str:
    """Python that draws the removal schedule of a run."""
    return (
        f"{_path_import([run])}"
        "from normlens.figures.removal_plan import removal_plan\n"
        "from normlens.workbench.runs import describe_run, run_schedule\n\n"
        f"run = describe_run({_path(run)}, {run.name!r})\n"
        "schedule = run_schedule(run)\n"
        f'removal_plan(schedule.freezes, schedule.steps, title={title!r}, note="")\n'
    )


def _path_import(runs: Iterable[TrainingRun]) -> str:
    bundled = {run.bundled for run in runs}
    pathlib = "from pathlib import Path\n\n" if False in bundled else ""
    return pathlib + ("from normlens.resources import data_path\n" if True in bundled else "")


def _path(run: TrainingRun) -> str:
    if run.bundled:
        return f'data_path("models", {run.directory.name!r})'
    return f"Path({str(run.directory)!r})"
