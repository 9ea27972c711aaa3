"""One server that forks the processes which tests kill or race."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.forks import Forks

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Tests that use it are in one xdist group, since starting it takes seconds."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.training.fork_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    yield Forks(server)
    assert server.stdin is not None and server.stdout is not None
    server.stdin.close()
    server.stdout.close()
    assert server.wait(timeout=60) == 0
