"""Runs in a process of their own: seen through a restart, really cancelled, resumable."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from normlens.errors import ModelNotFound, UsageError
from normlens.workbench import jobs
from normlens.workbench.choices import CorpusChoice, ModelChoice
from normlens.workbench.job_order import Order, order_of
from normlens.workbench.jobs import Job
from normlens.workbench.progress_file import Progress, ProgressFile
from normlens.workbench.sources import Sources
from normlens.workbench.stored import StoredResults
from tests.workbench.small_store import corpus_of, fill, write_models, write_text

PAIR = (ModelChoice("books-ln"), ModelChoice("books-lnfree"))


def until(true: Callable[[], bool], seconds: float = 200) -> None:
    """Wait for an event that another process causes."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie, which only waits to be noticed, does not."""
    try:
        return b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return False


@pytest.fixture
def stubborn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(jobs, "WORKER", "tests.workbench.stubborn")
    monkeypatch.setattr(jobs, "GRACE_SECONDS", 0.2)
    job = jobs.start(["scale"], PAIR, CorpusChoice(), store=tmp_path)
    until((job.directory / "pids").exists)
    until(lambda: len((job.directory / "pids").read_text().split()) == 2)
    yield job
    jobs.cancel(job)


def test_cancelling_ends_the_whole_group(stubborn: Job, tmp_path: Path) -> None:
    pids = [int(pid) for pid in (stubborn.directory / "pids").read_text().split()]
    assert pids[0] == stubborn.pid and all(alive(pid) for pid in pids)
    assert jobs.status(stubborn).state == "running"
    (again,) = jobs.jobs(tmp_path)
    assert again == stubborn, "known from its directory alone, as after a restart"
    began = time.monotonic()
    jobs.cancel(again)
    assert time.monotonic() - began < 5
    until(lambda: not any(alive(pid) for pid in pids), 5)
    assert jobs.status(again).state == jobs.status(stubborn).state == "cancelled"
    jobs.cancel(again)


def test_another_process_of_the_same_id_is_let_alone(stubborn: Job) -> None:
    jobs.cancel(stubborn)
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    try:
        ended = dataclasses.replace(stubborn, pid=other.pid)
        assert jobs.status(ended).state == "cancelled"
        jobs.cancel(ended)
        assert other.poll() is None
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()


def test_a_run_that_dies_without_a_word_has_failed(stubborn: Job) -> None:
    os.killpg(stubborn.pid, signal.SIGKILL)
    until(lambda: jobs.status(stubborn).state != "running", 10)
    status = jobs.status(stubborn)
    assert status.state == "failed" and "without a word" in status.message


def test_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        jobs.start(["scale"], [ModelChoice("books-xx")], CorpusChoice(), store=tmp_path)
    with pytest.raises(UsageError, match="at least one"):
        jobs.start(["scale"], [], CorpusChoice(), store=tmp_path)
    with pytest.raises(UsageError, match="no parameter size"):
        jobs.start(
            ["scale"], PAIR, CorpusChoice(), parameters={"scale": {"size": 1}}, store=tmp_path
        )
    assert jobs.jobs(tmp_path) == [] and not list(tmp_path.iterdir())


def test_the_command_says_what_is_not_the_default(tmp_path: Path) -> None:
    half = dataclasses.replace(PAIR[1], dtype="bfloat16")

    def order(models: tuple[ModelChoice, ...], names: tuple[str, ...], **more: object) -> Order:
        resolved = [model.source for model in models]
        return order_of(names, models, resolved, CorpusChoice(**more), {"scale": {}}, tmp_path)  # pyright: ignore[reportArgumentType]

    store = f"--store {shlex.quote(str(tmp_path))}"
    plain = order(PAIR, ("scale",))
    assert plain.command == f"normlens run scale books-ln books-lnfree --sequences 128 {store}"
    assert Order.from_json(plain.to_json()) == plain
    apart = order((PAIR[0], half), ("divergence",), text="a b.txt", sequences=0, bos="none")
    first, second = apart.command.split(" && ")
    assert "books-ln --reference books-ln --text 'a b.txt' --sequences 0 --bos none" in first
    assert "books-lnfree --reference books-ln --dtype bfloat16" in second
    chosen = order_of(
        ("scale",), PAIR, ["a", "b"], CorpusChoice(), {"scale": {"per_token": True}}, tmp_path
    )
    assert chosen.command.endswith("--scale.per-token")


def test_progress_is_whole_and_not_written_too_often(tmp_path: Path) -> None:
    seconds = [0.0]
    path = tmp_path / "progress.json"
    file = ProgressFile(path, lambda: seconds[0])

    @dataclasses.dataclass(frozen=True)
    class Step:
        label: str
        sequences: int
        total_sequences: int
        tokens: int
        resumed: bool = False

    def now() -> Progress:
        return Progress(**json.loads(path.read_text()))

    assert now().state == "running" and now().step == "opening"
    seconds[0] = 10.0
    file.show("ln", Step("pass", 64, 200, 640))  # pyright: ignore[reportArgumentType]
    assert (now().done, now().total, now().model, now().seconds) == (64, 200, "ln", 10.0)
    seconds[0] = 10.1
    file.show("ln", Step("pass", 128, 200, 1280))  # pyright: ignore[reportArgumentType]
    assert now().done == 64, "too soon"
    file.show("ln", Step("pass", 200, 200, 2000))  # pyright: ignore[reportArgumentType]
    assert now().done == 200, "the last step is always written"
    file.end("failed", "two\nlines")
    assert (now().state, now().message, now().done) == ("failed", "two lines", 200)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cancelled_then_run_again_equals_unbroken(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write_models(root)
    sources = Sources(root)
    pair = (ModelChoice("ln"), ModelChoice("lnfree"))
    corpus = corpus_of(write_text(tmp_path / "text.txt", repeats=400), sequences=256)
    names = ("scale", "freeze-sweep")
    parameters = {"freeze-sweep": {"sequences": 256}}
    store = tmp_path / "store"

    def start() -> Job:
        return jobs.start(
            names, pair, corpus, parameters=parameters, store=store, sources=sources, batch_size=64
        )  # fmt: skip

    job = start()
    until(lambda: bool(list(store.glob("*/sweep/shard-00000.safetensors"))))
    status = jobs.status(job)
    assert (status.state, status.model, status.total) == ("running", "ln", 256), status.log
    began = time.monotonic()
    jobs.cancel(job)
    assert time.monotonic() - began < 10, "two seconds where the machine is not busy"
    assert jobs.status(job).state == "cancelled"
    assert list(store.glob("*/sweep/shard-*.safetensors")), "finished parts are kept"
    assert StoredResults([store], sources).find("freeze-sweep", pair, corpus).result is None

    job = start()
    until(lambda: jobs.status(job).state != "running")
    assert jobs.status(job).state == "done", jobs.status(job).log
    assert not list(store.glob("*/sweep")), "shards are dropped once their result is stored"
    assert jobs.jobs(store)[0].id == job.id and len(jobs.jobs(store)) == 2

    unbroken = tmp_path / "unbroken"
    absolute = [ModelChoice(str(root / choice.source)) for choice in pair]
    fill(unbroken, absolute, ["scale"], corpus, batch_size=64)
    found, expected = (
        StoredResults([place], sources).find("scale", pair, corpus).result
        for place in (store, unbroken)
    )
    assert found is not None and expected is not None
    assert repr(found.headline) == repr(expected.headline)
    sweep = StoredResults([store], sources).find(
        "freeze-sweep", pair, corpus, parameters=parameters["freeze-sweep"]
    )
    assert sweep.missing == ()


@pytest.mark.slow
def test_a_failed_run_says_why(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write_models(root)
    (root / "ln" / "model.safetensors").write_bytes(b"damaged")
    job = jobs.start(
        ["scale"], [ModelChoice("ln")], CorpusChoice(), store=tmp_path, sources=Sources(root)
    )
    until(lambda: jobs.status(job).state != "running")
    status = jobs.status(job)
    assert status.state == "failed" and "model.safetensors" in status.message
    assert status.message in status.log and "Traceback" not in status.log
