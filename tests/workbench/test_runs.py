"""Runs on disk: what is found, how far each is, and the schedule that each follows."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from normlens.errors import LoadError
from normlens.resources import data_path
from normlens.training.log import COLUMNS, TrainingLog
from normlens.training.outcome import OUTCOME, PROGRESS, Outcome, Reached, write_record
from normlens.training.recipe import load_recipe
from normlens.training.record import RunRecord, read_log, read_run_record, write_run_record
from normlens.training.schedule import freezes, pre_norm_switches
from normlens.workbench.run_code import curves_code, schedule_code
from normlens.workbench.runs import (
    TrainingRun,
    bundled_runs,
    describe_run,
    find_runs,
    run_log,
    run_schedule,
)

NOW = Reached(3, 7, 5.5, math.nan, 100.0, 64, 0.0)


def a_run(directory: Path, rows: int = 3, *, live: tuple[int, ...] = (0,), age: float = 0) -> Path:
    directory.mkdir(parents=True)
    with TrainingLog(directory / "log.csv", keep_below=0) as log:
        for step in range(rows):
            log.write(
                step=step,
                loss=6.0 - step / 8,
                auxiliary=0.25,
                gradient_norm=1.5,
                lr=1e-3,
                live_scales=live[min(step, len(live) - 1)],
                held_out_loss=math.nan if step < 2 else 5.5,
            )
    then = time.time() - age
    os.utime(directory / "log.csv", (then, then))
    return directory


def only(root: Path) -> TrainingRun:
    (found,) = find_runs([root])
    return found


def test_a_run_without_a_record_is_known_by_its_log(tmp_path: Path) -> None:
    a_run(tmp_path / "a" / "run", live=(4, 3, 1))
    run = only(tmp_path)
    assert (run.name, run.kind, run.state) == ("a/run", "removal", "running")
    assert (run.step, run.steps, run.held_out_loss) == (3, None, 5.5)
    schedule = run_schedule(run)
    assert schedule is not None
    assert schedule.freezes["step"].tolist() == [1, 2, 2]
    assert schedule.freezes["live_scales"].tolist() == [3, 1, 1]
    assert set(schedule.freezes["scale"]) == {"not recorded"}


def test_a_record_gives_the_length_and_the_schedule_to_the_end(tmp_path: Path) -> None:
    recipe = load_recipe("books-lnfree")
    directory = a_run(tmp_path / "run", age=1000)
    switches = pre_norm_switches(2)
    write_run_record(directory, RunRecord(recipe, switches))
    run = only(tmp_path)
    assert (run.kind, run.state, run.step, run.steps) == ("removal", "stopped", 3, 240)
    schedule = run_schedule(run)
    assert schedule is not None and recipe.removal is not None
    planned = [(event.step, event.site) for event in freezes(recipe.removal, switches)]
    assert list(schedule.freezes[["step", "scale"]].itertuples(index=False, name=None)) == planned
    assert len(schedule.steps) == 240


def test_states_of_a_queue(tmp_path: Path) -> None:
    for name in ("going", "left", "ended", "broke"):
        write_record(a_run(tmp_path / name, age=1000 * (name != "going")), PROGRESS, NOW)
    write_record(tmp_path / "ended", OUTCOME, Outcome("done", 5.5, "", "", ""))
    write_record(tmp_path / "broke", OUTCOME, Outcome("diverged", math.nan, "jumped", "", ""))
    runs = {run.name: run for run in find_runs([tmp_path])}
    assert {name: run.state for name, run in runs.items()} == {
        "going": "running",
        "left": "stopped",
        "ended": "done",
        "broke": "diverged",
    }
    assert {(run.kind, run.steps) for run in runs.values()} == {("family", 7)}
    assert runs["broke"].remark == "jumped"
    assert find_runs([tmp_path])[0].name == "going"


def test_a_long_log_is_read_from_its_ends(tmp_path: Path) -> None:
    directory = a_run(tmp_path / "run", rows=400, live=(7, 5))
    assert (directory / "log.csv").stat().st_size > 3 * 4096
    run = only(tmp_path)
    assert (run.step, run.kind, run.held_out_loss) == (400, "removal", 5.5)


def test_a_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    directory = a_run(tmp_path / "run")
    with (directory / "log.csv").open("a") as file:
        file.write("3,5.1,0.1,1.0,0.001,0,5.")
    assert only(tmp_path).step == 3
    log = run_log(only(tmp_path))
    assert log["step"].tolist() == [0, 1, 2]
    assert log["loss"].tolist() == [6.0, 5.875, 5.75]
    assert log["held_out_loss"].isna().tolist() == [True, True, False]


@pytest.mark.parametrize("content", ["", "epoch,loss\n1,2\n", "\x00\n"])
def test_logs_of_other_programs_are_no_runs(tmp_path: Path, content: str) -> None:
    (tmp_path / "log.csv").write_text(content)
    assert find_runs([tmp_path]) == ()
    with pytest.raises(LoadError, match="is not the log of a training run"):
        read_log(tmp_path)


def test_what_cannot_be_read_is_listed_as_such(tmp_path: Path) -> None:
    (a_run(tmp_path / "a") / "run.json").write_text("{")
    (a_run(tmp_path / "b") / PROGRESS).write_text("[]")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "log.csv").write_text(",".join(COLUMNS) + "\n0,x,0,0,0,0,0\n")
    runs = find_runs([tmp_path])
    assert {(run.name, run.state) for run in runs} == {(n, "unreadable") for n in "abc"}
    assert all(run.remark and "\n" not in run.remark for run in runs)


def test_a_run_that_has_not_begun_and_roots_that_are_not_there(tmp_path: Path) -> None:
    assert find_runs([tmp_path / "nothing"]) == ()
    run = describe_run(a_run(tmp_path / "run", rows=0), "run")
    assert (run.step, run.state) == (0, "running")
    assert run_log(run).empty


def test_a_root_that_is_a_run_and_overlapping_roots(tmp_path: Path) -> None:
    a_run(tmp_path / "run")
    assert only(tmp_path / "run").name == "run"
    assert len(find_runs([tmp_path, tmp_path / "run"])) == 1


def test_the_bundled_models_carry_their_training() -> None:
    runs = {run.name: run for run in bundled_runs()}
    assert next(iter(runs)) == "books-lnfree"
    for name in ("books-ln", "books-control", "books-aux", "books-lnfree"):
        run, card = runs[name], data_path("models", name, "normlens.json")
        assert run.record is not None
        assert run.record.recipe == load_recipe(name)
        assert run.state == "done" and run.step == run.record.recipe.steps
        said = json.loads(card.read_text())["held_out_loss_nats_per_token"]
        assert run.held_out_loss == pytest.approx(said, abs=1e-6)
    schedule = run_schedule(runs["books-lnfree"])
    assert schedule is not None
    log = run_log(runs["books-lnfree"])
    assert schedule.steps["live_scales"].tolist() == log["live_scales"].tolist()
    assert schedule.steps["lr"].tolist() == pytest.approx(log["lr"].tolist())


def test_the_trainer_writes_the_record(tmp_path: Path) -> None:
    from normlens.training.run import run_recipe
    from tests.training.small import small_held_out, small_recipe, small_text

    recipe = small_recipe()
    run_recipe(recipe, small_text(tmp_path), tmp_path / "run", held_out=small_held_out())
    assert read_run_record(tmp_path / "run") == RunRecord(recipe, pre_norm_switches(2))
    run = only(tmp_path / "run")
    assert (run.state, run.step, run.steps) == ("done", 20, 20)
    schedule = run_schedule(run)
    assert schedule is not None
    assert schedule.steps["live_scales"].tolist() == run_log(run)["live_scales"].tolist()


def test_runs_load_no_framework() -> None:
    code = (
        "import sys; from normlens.workbench.runs import bundled_runs, run_schedule; "
        "run_schedule(bundled_runs()[0]); "
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_code_of_a_chart_draws_it(tmp_path: Path) -> None:
    a_run(tmp_path / "it's" / "run", live=(4, 3, 1))
    runs = {run.name: run for run in (*find_runs([tmp_path]), bundled_runs()[0])}
    curves: dict[str, Any] = {}
    exec(
        curves_code(runs).replace("training_curves(logs)", "drawn = training_curves(logs)"), curves
    )
    assert len(curves["drawn"].data) >= 2 and set(curves["logs"]) == set(runs)
    for run in runs.values():
        plan: dict[str, Any] = {}
        exec(
            schedule_code(run, "A 'title'").replace("removal_plan(s", "drawn = removal_plan(s"),
            plan,
        )
        assert "A 'title'" in plan["drawn"].layout.title.text
