"""Kill -9 in the middle of a pass: the same command ends with the unbroken run's numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from normlens.models.export import write_model
from normlens.results import Result
from tests.tiny import tiny_gpt2, tokenizer

ANALYSES = ("scale", "output", "freeze-sweep")


def command(model: Path, store: Path, out: Path) -> list[str]:
    return [
        sys.executable, "-m", "normlens", "run", *ANALYSES, str(model), "--sequences", "320",
        "--context", "32", "--batch-size", "64", "--store", str(store), "--out", str(out),
        "--freeze-sweep.sequences", "128", "--threads", "1",
    ]  # fmt: skip


def kill_at(marker: str, arguments: list[str], store: Path) -> None:
    """Start the command and kill it as soon as a shard file of that name is in the store."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if any(store.glob(f"*/{marker}")):
            process.send_signal(signal.SIGKILL)
            break
    assert process.wait() == -signal.SIGKILL, "the run ended before its marker appeared"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_twice_equals_unbroken(tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_model(tiny_gpt2(1), tokenizer(), model)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    unbroken = command(model, tmp_path / "a", tmp_path / "out-a")
    subprocess.run(unbroken, check=True, env=environment, stdout=subprocess.DEVNULL)
    broken = command(model, tmp_path / "b", tmp_path / "out-b")
    kill_at("scale/shard-00002.safetensors", broken, tmp_path / "b")
    assert not (tmp_path / "out-b").exists()
    shards = {p.name for p in (tmp_path / "b").glob("*/scale/*")}
    assert "shard-00002.safetensors" in shards
    kill_at("sweep/shard-00000.safetensors", broken, tmp_path / "b")
    subprocess.run(broken, check=True, env=environment, stdout=subprocess.DEVNULL)
    for name in ANALYSES:
        one, two = (Result.load(tmp_path / out / name) for out in ("out-a", "out-b"))
        assert repr(one.headline) == repr(two.headline), "repr, since NaN is not equal to itself"
        for table, frame in one.tables.items():
            pd.testing.assert_frame_equal(frame, two.tables[table], check_exact=True)
