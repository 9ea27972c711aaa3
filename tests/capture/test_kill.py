"""Kill -9 in the middle of a pass: the same command ends with the unbroken run's numbers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

from normlens.cli.app import run_command
from normlens.models.export import write_model
from normlens.results import Result
from tests.tiny import tiny_gpt2, tokenizer

ANALYSES = ("scale", "output", "freeze-sweep")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The commands set the number of threads of the process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def command(model: Path, store: Path, out: Path) -> list[str]:
    return [
        "run", *ANALYSES, str(model), "--sequences", "320", "--context", "32",
        "--batch-size", "64", "--store", str(store), "--out", str(out),
        "--freeze-sweep.sequences", "128", "--threads", "1",
    ]  # fmt: skip


def kill_at(marker: str, arguments: list[str], store: Path) -> None:
    """Start the command and kill it as soon as a shard file of that name is in the store."""
    process = subprocess.Popen(
        [sys.executable, "-m", "normlens", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None:
        if any(store.glob(f"*/{marker}")):
            process.send_signal(signal.SIGKILL)
            break
        # Looking without a pause takes as much of a core as the command.
        time.sleep(0.005)
    assert process.wait() == -signal.SIGKILL, "the run ended before its marker appeared"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_twice_equals_unbroken(tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_model(tiny_gpt2(1), tokenizer(), model)
    assert run_command(command(model, tmp_path / "a", tmp_path / "out-a")) == 0
    broken = command(model, tmp_path / "b", tmp_path / "out-b")
    kill_at("scale/shard-00002.safetensors", broken, tmp_path / "b")
    assert not (tmp_path / "out-b").exists()
    shards = {p.name for p in (tmp_path / "b").glob("*/scale/*")}
    assert "shard-00002.safetensors" in shards
    kill_at("sweep/shard-00000.safetensors", broken, tmp_path / "b")
    assert run_command(broken) == 0
    for name in ANALYSES:
        one, two = (Result.load(tmp_path / out / name) for out in ("out-a", "out-b"))
        assert repr(one.headline) == repr(two.headline), "repr, since NaN is not equal to itself"
        for table, frame in one.tables.items():
            pd.testing.assert_frame_equal(frame, two.tables[table], check_exact=True)
