"""Two processes train what one trains, up to rounding."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from normlens.errors import UsageError
from normlens.training.replicas import Replicas, replicas
from normlens.training.run import run_recipe
from tests.training.forks import Forks
from tests.training.small import small_held_out, small_recipe, small_text


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


@pytest.mark.xdist_group("forks")
def test_two_processes_end_like_one(tmp_path: Path, forks: Forks) -> None:
    text = small_text(tmp_path)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    ranks = [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    assert forks.run(*(("replica", tmp_path, rank) for rank in ranks)) == [0, 0]
    recipe = small_recipe(batch_size=4, auxiliary=None)
    run_recipe(recipe, text, tmp_path / "one", held_out=small_held_out())
    one, two = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    # The gradient of the keys' bias is zero but for rounding, which Adam makes a whole step of.
    names = [n for n in one if n.startswith("model.") and not n.endswith("c_attn.bias")]
    for name in names:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-3)
    logs = [
        (tmp_path / name / "log.csv").read_text(encoding="utf-8").splitlines()
        for name in ("one", "two")
    ]
    assert len(logs[0]) == len(logs[1]) == 21
    first, last = ([float(log[row].split(",")[1]) for log in logs] for row in (1, -1))
    assert first[1] == pytest.approx(first[0], abs=1e-5)
    assert last[1] == pytest.approx(last[0], abs=1e-3)


def test_a_batch_is_dealt_out_whole() -> None:
    ids = torch.arange(10).view(5, 2)
    shares = [Replicas(rank, 3, "cpu").deal(ids) for rank in range(3)]
    assert [len(share) for share in shares] == [2, 2, 1]
    assert torch.equal(torch.cat(shares), ids)
    with pytest.raises(UsageError, match="5 sequences cannot be dealt to 6"):
        Replicas(0, 6, "cpu").deal(ids)


def test_one_process_unless_the_environment_says_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replicas("cpu") == Replicas(0, 1, "cpu")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="cannot share cuda:1; pass --device cuda"):
        replicas("cuda:1")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(UsageError, match="pip install accelerate"):
        replicas("cpu")
