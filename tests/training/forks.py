"""The side of the tests of :mod:`tests.training.fork_server`."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Forks:
    """A running server."""

    server: subprocess.Popen[str]

    def run(self, *jobs: tuple[object, ...]) -> list[int]:
        """Exit statuses of jobs that run at the same time."""
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps([[*map(_plain, job)] for job in jobs]) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        assert answer, "the server has ended; its stderr says why"
        return json.loads(answer)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
