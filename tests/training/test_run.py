"""A run gives equal bytes: twice, interrupted at any step, and killed while writing."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors import safe_open

from normlens.errors import OutputError, StoreMismatch, TrainingDiverged, UsageError
from normlens.training.estimate import estimate
from normlens.training.job import prepare
from normlens.training.loop import Progress, train
from normlens.training.run import LOCK, run_recipe
from tests.training.forks import Forks
from tests.training.small import small_held_out, small_recipe, small_text

pytestmark = pytest.mark.xdist_group("forks")

MARKERS = ("between_checkpoints", "while_writing")


class StoppedError(Exception):
    """Raised by a test to interrupt a run."""


def run_small(run: Path, report: Callable[[Progress], None] = lambda _: None) -> dict[str, bytes]:
    """Run the small recipe; the files that must not depend on interruptions."""
    text = small_text(run.parent)
    run_recipe(small_recipe(), text, run, held_out=small_held_out(), report=report)
    return outcome(run)


def outcome(run: Path) -> dict[str, bytes]:
    files = [*sorted((run / "model").iterdir()), run / "log.csv", run / "checkpoint.safetensors"]
    return {file.name: file.read_bytes() for file in files}


def stop_at(step: int) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        if progress.step == step:
            raise StoppedError

    return report


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return run_small(tmp_path_factory.mktemp("unbroken") / "run")


def test_a_run_twice_gives_equal_bytes(tmp_path: Path, unbroken: dict[str, bytes]) -> None:
    assert run_small(tmp_path / "run") == unbroken


@pytest.mark.parametrize("field", ["seed", "data_seed"])
def test_another_seed_gives_other_bytes(
    tmp_path: Path, unbroken: dict[str, bytes], field: str
) -> None:
    recipe = small_recipe(**{field: 6})
    run_recipe(recipe, small_text(tmp_path), tmp_path / "run", held_out=small_held_out())
    assert outcome(tmp_path / "run")["model.safetensors"] != unbroken["model.safetensors"]


# Steps right after each checkpoint and past it, and after the last one, before the export.
@pytest.mark.parametrize("step", [5, 7, 10, 15, 20])
def test_an_interrupted_run_ends_like_an_unbroken_one(
    tmp_path: Path, unbroken: dict[str, bytes], step: int
) -> None:
    run = tmp_path / "run"
    with pytest.raises(StoppedError):
        run_small(run, stop_at(step))
    assert not (run / "model").exists()
    assert run_small(run) == unbroken


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Path:
    """Run directories of runs that were killed with signal 9 after step 8 and at step 10."""
    root = tmp_path_factory.mktemp("killed")
    for marker in MARKERS:
        assert forks.run((marker, root / marker)) == [-signal.SIGKILL]
    return root


@pytest.mark.parametrize("marker", MARKERS)
def test_a_killed_run_ends_like_an_unbroken_one(
    killed: Path, unbroken: dict[str, bytes], marker: str
) -> None:
    run = killed / marker
    with safe_open(run / "checkpoint.safetensors", framework="pt") as file:
        assert '"step": 5' in file.metadata()["normlens"]
    assert len(list(run.glob(".*.tmp"))) == (marker == "while_writing")
    assert run_small(run) == unbroken
    assert not list(run.glob(".*.tmp"))


def test_the_log_has_a_row_a_step_and_counts_live_scales(unbroken: dict[str, bytes]) -> None:
    header, *rows = unbroken["log.csv"].decode().splitlines()
    cells = [dict(zip(header.split(","), row.split(","), strict=True)) for row in rows]
    assert [int(cell["step"]) for cell in cells] == list(range(20))
    # 2 layers: 2 MLP norms, 2 q/k paths, 2 v paths and the final norm, by the schedule.
    live = [7, 7, 7, 6, 6, 5, 4, 4, 3, 2, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert [int(cell["live_scales"]) for cell in cells] == live
    assert cells[5]["held_out_loss"] == "nan" and cells[6]["held_out_loss"] != "nan"


def test_training_lowers_the_loss(unbroken: dict[str, bytes]) -> None:
    rows = unbroken["log.csv"].decode().splitlines()[1:]
    losses = [float(row.split(",")[1]) for row in rows]
    assert sum(losses[-3:]) / 3 < losses[0] - 0.3


def test_a_run_directory_belongs_to_one_recipe(tmp_path: Path) -> None:
    run, text = tmp_path / "run", small_text(tmp_path)
    with pytest.raises(StoppedError):
        run_small(run, stop_at(6))
    with pytest.raises(StoreMismatch, match="its recipe is"):
        run_recipe(small_recipe(steps=21), text, run, held_out=small_held_out())


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(StoreMismatch, match="unreadable"):
        run_small(run)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with FileLock(run / LOCK), pytest.raises(OutputError, match="another process"):
        run_small(run)


def test_a_run_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="choose another --out"):
        run_recipe(small_recipe(), small_text(tmp_path), tmp_path / "file" / "run")


@pytest.mark.parametrize(("factor", "message"), [(float("nan"), "is nan"), (3000.0, "jumped from")])
def test_divergence_stops_and_keeps_the_last_checkpoint(
    tmp_path: Path, factor: float, message: str
) -> None:
    recipe = small_recipe()
    job = prepare(recipe, small_text(tmp_path), held_out=small_held_out())

    def spoil(progress: Progress) -> None:
        if progress.step == 7:
            job.model.transformer.wte.weight.data *= factor

    with pytest.raises(TrainingDiverged, match=f"{message}.* at step 7;.*checkpoint is") as error:
        train(recipe, job.model, job.stream, job.held_out, tmp_path, job.identity, spoil)
    assert "\n" not in str(error.value)
    with safe_open(tmp_path / "checkpoint.safetensors", framework="pt") as file:
        assert '"step": 5' in file.metadata()["normlens"]
        weight = file.get_tensor("model.transformer.wte.weight")
    assert weight.abs().max() < 10


def test_a_schedule_longer_than_the_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="final is frozen at step 13, but the run has 13 steps"):
        prepare(small_recipe(steps=13), small_text(tmp_path), held_out=small_held_out())


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'nowhere' cannot be used here"):
        prepare(small_recipe(), small_text(tmp_path), device="nowhere")


def test_an_estimate_counts_tokens_and_lists_the_schedule(tmp_path: Path) -> None:
    job = prepare(small_recipe(), small_text(tmp_path), held_out=small_held_out())
    before = job.model.transformer.wte.weight.clone()
    found = estimate(job)
    assert (found.tokens_per_step, found.tokens) == (48, 960)
    assert found.epochs == pytest.approx(60 / found.training_windows)
    assert [event.step for event in found.freezes] == [3, 5, 6, 8, 9, 11, 13]
    assert found.seconds == pytest.approx(20 * found.step_seconds)
    assert found.peak_bytes > 50e6
    assert not torch.equal(before, job.model.transformer.wte.weight)
