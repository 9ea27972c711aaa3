"""The queue resumes, skips what is done, records divergence, and shares runs between processes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from normlens.errors import NotApplicable, StoreMismatch, UsageError
from normlens.training import queue as queue_module
from normlens.training.family import Run, runs_in_order, schemes
from normlens.training.loop import Progress
from normlens.training.outcome import PROGRESS, Reached, read_outcome, write_record
from normlens.training.queue import CLAIM, Queue
from normlens.training.queue_status import queue_status
from normlens.training.recipe import load_recipe
from normlens.training.sweep import chosen_rate, sweep_points
from tests.training.forks import Forks
from tests.training.small import small_held_out, small_text

pytestmark = pytest.mark.xdist_group("forks")

RECIPE = """
name = "{name}"
purpose = "A test."
steps = 6
batch_size = 3
seed = 5
data_seed = 7
checkpoint_every = 2
evaluate_every = 3
evaluation_sequences = 4

[architecture]
layers = 1
width = 8
heads = 2
context = 16
vocabulary = 4096
norm_eps = 3e-4

[optimizer]
lr = 1e-2
final_lr_fraction = 0.2
warmup_steps = 2

[sweep]
lr = [{rates}]
tokens = 144
"""
RATES = "3e-4, 1e-2, 1e-1"
# Too high for any network: the weights overflow at the first step.
HOPELESS = "1e25, 1e26, 1e27"


class StoppedError(Exception):
    """Raised by a test to interrupt a queue."""


def recipe(directory: Path, name: str, rates: str = RATES) -> str:
    path = directory / f"{name}.toml"
    path.write_text(RECIPE.format(name=name, rates=rates), encoding="utf-8")
    return str(path)


def queue(place: Path, names: list[str], seeds: tuple[int, ...] = (), **more: Any) -> Queue:
    found = schemes(names, seeds, place / "out")
    return Queue(found, small_text(place), held_out=small_held_out(), **more)


def files(out: Path) -> dict[str, bytes]:
    """What must not depend on interruptions."""
    found = [p for p in sorted(out.rglob("*")) if p.is_file() and p.name not in (PROGRESS, CLAIM)]
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


def stop_at(label: str, step: int) -> Callable[[Run, Progress], None]:
    def report(run: Run, progress: Progress) -> None:
        if (run.label, progress.step) == (label, step):
            raise StoppedError

    return report


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("unbroken")
    assert queue(place, [recipe(place, "a")], (5, 6)).work() == {}
    return place / "out"


def test_a_sweep_is_a_short_run_a_rate_with_its_own_schedule(tmp_path: Path) -> None:
    full = load_recipe(recipe(tmp_path, "a"))
    points = sweep_points(full, 16)
    assert list(points) == [3e-4, 1e-2, 1e-1]
    for rate, point in points.items():
        assert (point.steps, point.optimizer.warmup_steps, point.sweep) == (3, 1, None)
        assert point.optimizer.lr == rate
        assert (point.seed, point.data_seed) == (full.seed, full.data_seed)


def test_the_lowest_finite_loss_is_chosen() -> None:
    assert chosen_rate({1e-3: 4.0, 3e-3: 3.9, 1e-2: math.inf}) == 3e-3
    assert chosen_rate({1e-3: math.inf}) is None
    assert chosen_rate({}) is None
    assert chosen_rate({1e-3: 4.0, 3e-3: 3.9, 1e-2: 3.8}, [1e-2]) == 3e-3
    assert chosen_rate({1e-3: 4.0, 3e-3: 3.9, 1e-2: math.inf}, [3e-3, 1e-2]) == 1e-3
    assert chosen_rate({1e-3: 4.0}, [1e-3]) is None


def test_the_runs_use_the_rate_of_the_sweep_and_the_card_says_so(unbroken: Path) -> None:
    sweep = json.loads((unbroken / "a" / "sweep.json").read_text(encoding="utf-8"))
    losses = {point["lr"]: point["held_out_loss"] for point in sweep["points"]}
    assert sweep["lr"] == min(losses, key=losses.__getitem__) != 3e-4
    for seed in (5, 6):
        model = unbroken / "a" / f"seed-{seed}" / "model"
        card = json.loads((model / "normlens.json").read_text(encoding="utf-8"))
        assert (card["seed"], card["lr"], card["sweep"]) == (seed, sweep["lr"], sweep["points"])
        assert card["command"] == f"normlens family a --seeds {seed}"
    weights = [
        (unbroken / "a" / f"seed-{seed}" / "model" / "model.safetensors").read_bytes()
        for seed in (5, 6)
    ]
    assert weights[0] != weights[1]


def test_an_interrupted_queue_ends_like_an_unbroken_one(tmp_path: Path, unbroken: Path) -> None:
    names = [recipe(tmp_path, "a")]
    for label, step in (("a lr 0.01", 3), ("a seed 5", 5)):
        with pytest.raises(StoppedError):
            queue(tmp_path, names, (5, 6), report=stop_at(label, step)).work()
    begun: list[str] = []
    assert queue(tmp_path, names, (5, 6), announce=begun.append).work() == {}
    assert [line for line in begun if "begins" in line] == ["a seed 5 begins", "a seed 6 begins"]
    assert files(tmp_path / "out") == files(unbroken)


def test_what_is_done_is_not_done_again(unbroken: Path) -> None:
    place = unbroken.parent
    before = files(unbroken)
    again: list[str] = []
    assert queue(place, [str(place / "a.toml")], (5, 6), announce=again.append).work() == {}
    assert again == [] and files(unbroken) == before


def test_a_diverged_point_loses_and_is_not_tried_again(tmp_path: Path) -> None:
    names = [recipe(tmp_path, "a", "1e-2, 1e25")]
    assert queue(tmp_path, names).work() == {}
    sweep = json.loads((tmp_path / "out" / "a" / "sweep.json").read_text(encoding="utf-8"))
    assert sweep["lr"] == 1e-2 and sweep["points"][1] == {"lr": 1e25, "held_out_loss": None}
    point = tmp_path / "out" / "a" / "sweep" / "lr-1e+25"
    found = read_outcome(point)
    assert found is not None and found.status == "diverged" and math.isnan(found.held_out_loss)
    assert "the loss is" in found.reason and (point / "log.csv").is_file()
    lines: list[str] = []
    queue(tmp_path, names, announce=lines.append).work()
    assert lines == []


def test_a_run_that_diverges_is_begun_again_at_a_lower_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep prefers a rate at which the whole run does not survive."""
    names = [recipe(tmp_path, "a", "1e-2, 3e-2")]
    run_recipe = queue_module.run_recipe

    def fragile(recipe: Any, *args: Any, **options: Any) -> Path:
        if recipe.name == "a" and recipe.optimizer.lr == 3e-2:
            recipe = recipe.changed(optimizer={**recipe.optimizer.model_dump(), "lr": 1e25})
        return run_recipe(recipe, *args, **options)

    monkeypatch.setattr(queue_module, "run_recipe", fragile)
    monkeypatch.setattr(queue_module, "sweep_losses", lambda _scheme: {1e-2: 9.0, 3e-2: 8.0})
    lines: list[str] = []
    assert queue(tmp_path, names, announce=lines.append).work() == {}
    run = tmp_path / "out" / "a" / "seed-5"
    found = read_outcome(run)
    assert found is not None and found.status == "done"
    card = json.loads((run / "model" / "normlens.json").read_text(encoding="utf-8"))
    assert (card["lr"], card["diverged"]) == (1e-2, [3e-2])
    assert (run / "diverged" / "lr-0.03" / "log.csv").is_file()
    assert "a seed 5 begins again at lr 0.01" in lines
    again: list[str] = []
    assert queue(tmp_path, names, announce=again.append).work() == {} and again == []


def test_where_every_point_diverges_nothing_is_trained(tmp_path: Path) -> None:
    names = [recipe(tmp_path, "a", HOPELESS), recipe(tmp_path, "b")]
    assert queue(tmp_path, names).work() == {}
    found = read_outcome(tmp_path / "out" / "a" / "seed-5")
    assert found is not None and found.status == "diverged"
    assert found.reason == "every learning rate of the sweep diverged"
    assert not (tmp_path / "out" / "a" / "seed-5" / "model").exists()
    assert (tmp_path / "out" / "b" / "seed-5" / "model").is_dir()


def test_a_run_that_cannot_be_carried_out_leaves_the_others(tmp_path: Path) -> None:
    path = recipe(tmp_path, "a")
    Path(path).write_text(
        Path(path).read_text(encoding="utf-8").replace("vocabulary = 4096", "vocabulary = 4000"),
        encoding="utf-8",
    )
    failed = queue(tmp_path, [path, recipe(tmp_path, "b")]).work()
    assert set(failed) == {"a lr 0.0003", "a lr 0.01", "a lr 0.1", "a seed 5"}
    assert "smaller than the tokenizer" in failed["a lr 0.01"]
    assert failed["a seed 5"] == "a lr 0.0003 failed"
    assert (tmp_path / "out" / "b" / "seed-5" / "model").is_dir()


def test_a_claimed_run_is_left_to_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [recipe(tmp_path, "a"), recipe(tmp_path, "b")]
    held = tmp_path / "out" / "a" / "sweep" / "lr-0.0003"
    held.mkdir(parents=True)
    lock = FileLock(held / CLAIM)
    lock.acquire()
    begun: list[str] = []

    def release(_seconds: float) -> None:
        """In place of waiting: everything but what hangs on the claimed run is done."""
        assert "b seed 5 begins" in begun and "a seed 5 begins" not in begun
        lock.release()

    monkeypatch.setattr(queue_module.time, "sleep", release)
    queue(tmp_path, names, announce=begun.append).work()
    order = [line.removesuffix(" begins") for line in begun if line.endswith("begins")]
    assert order[:3] == ["a lr 0.01", "a lr 0.1", "b lr 0.0003"]
    assert order[-2:] == ["a lr 0.0003", "a seed 5"] and len(order) == len(set(order)) == 8


def test_two_processes_never_take_one_run(tmp_path: Path, forks: Forks) -> None:
    for name in ("a", "b"):
        recipe(tmp_path, name)
    small_text(tmp_path)
    said = [tmp_path / "one.log", tmp_path / "two.log"]
    assert forks.run(*(("work_queue", tmp_path, path) for path in said)) == [0, 0]
    lines = [line for path in said for line in path.read_text(encoding="utf-8").splitlines()]
    begun = [line for line in lines if line.endswith("begins")]
    assert len(begun) == len(set(begun)) == 10
    found = schemes([str(tmp_path / f"{n}.toml") for n in "ab"], (5, 6), tmp_path / "out")
    assert {run.state for run in queue_status(found).runs} == {"done"}


def test_the_first_seed_of_every_scheme_comes_first(tmp_path: Path) -> None:
    found = schemes([recipe(tmp_path, name) for name in "ab"], (1, 2), tmp_path)
    labels = [run.label for run in runs_in_order(found)]
    assert labels[3::4] == ["a seed 1", "b seed 1"] and labels[-2:] == ["a seed 2", "b seed 2"]


def test_another_recipe_in_the_same_place_is_refused(tmp_path: Path) -> None:
    queue(tmp_path, [recipe(tmp_path, "a", "1e-2")]).work()
    path = Path(recipe(tmp_path, "a", "1e-2"))
    path.write_text(
        path.read_text(encoding="utf-8").replace("steps = 6", "steps = 7"), encoding="utf-8"
    )
    with pytest.raises(StoreMismatch, match="holds a run of another recipe"):
        queue(tmp_path, [str(path)]).work()


def test_the_status_reads_and_touches_nothing(tmp_path: Path) -> None:
    names = [recipe(tmp_path, "a", "1e-2")]
    found = schemes(names, (), tmp_path / "out")
    status = queue_status(found)
    assert [run.state for run in status.runs] == ["waiting", "waiting"]
    assert math.isnan(status.seconds_left) and not (tmp_path / "out").exists()

    queue(tmp_path, names).work()
    (point, full) = queue_status(found).runs
    assert (point.state, full.state) == ("done", "done")
    assert (full.step, full.steps, full.seconds_left) == (6, 6, 0.0)
    assert full.held_out_loss == pytest.approx(full.loss, abs=0.5)
    assert queue_status(found).seconds_left == 0.0


def test_the_status_tells_a_running_from_a_stopped_run(tmp_path: Path) -> None:
    found = schemes([recipe(tmp_path, "a", "1e-2")], (), tmp_path / "out")
    run = found[0].sweep[0]
    run.directory.mkdir(parents=True)
    for age, state in ((1.0, "training"), (1000.0, "stopped")):
        reached = Reached(1, 3, 8.0, math.nan, 24.0, 48, queue_module.time.time() - age)
        write_record(run.directory, PROGRESS, reached)
        status = queue_status(found)
        assert (status.runs[0].state, status.runs[0].step) == (state, 1)
        assert status.runs[0].seconds_left == pytest.approx(2 * 48 / 24)
        assert status.seconds_left == pytest.approx((2 + 6) * 48 / 24)


def test_a_scheme_is_named_once_and_has_no_ancestor(tmp_path: Path) -> None:
    name = recipe(tmp_path, "a")
    with pytest.raises(UsageError, match="scheme a is asked for twice"):
        schemes([name, name], (), tmp_path)
    with pytest.raises(UsageError, match="seed 1 is asked for twice"):
        schemes([name], (1, 1), tmp_path)
    with pytest.raises(NotApplicable, match="starts from an ancestor"):
        schemes(["books-aux"], (), tmp_path)
