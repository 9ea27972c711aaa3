"""Processes for tests to kill or to race, forked from one that has imported everything.

``python -m tests.training.fork_server`` reads lines of JSON, each a list of jobs, each the name
of a function here and its arguments. It forks a process per job, all at once and before any
computation, and answers with the list of their exit statuses, negative for a signal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from normlens.training import checkpoint, queue
from normlens.training.family import schemes
from normlens.training.loop import Progress
from normlens.training.run import run_recipe
from normlens.training.text import texts
from tests.training.small import llama_recipe, small_held_out, small_recipe, small_text


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_8(progress: Progress) -> None:
    if progress.step == 8:
        die()


def between_checkpoints(run: str) -> None:
    """The small recipe, killed after step 8."""
    text = small_text(Path(run).parent)
    run_recipe(small_recipe(), text, Path(run), held_out=small_held_out(), report=die_at_8)


def while_writing(run: str) -> None:
    """The small recipe, killed when the checkpoint of step 10 is half in place."""
    save_file = checkpoint.save_file

    def save(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        save_file(tensors, path, metadata)
        if '"step": 10' in metadata["normlens"]:
            die()

    checkpoint.save_file = save  # type: ignore[assignment]
    run_recipe(small_recipe(), small_text(Path(run).parent), Path(run), held_out=small_held_out())


def removal(root: str, model: str) -> None:
    """The removal of a tiny Llama, killed after step 8."""
    text, run = small_text(Path(root)), Path(root) / "run"
    run_recipe(llama_recipe(Path(model)), text, run, held_out=small_held_out(), report=die_at_8)


def replica(place: str, environment: Mapping[str, str]) -> None:
    """One of the processes of a run, with the environment that names them."""
    os.environ.update(environment)
    text = texts(sorted(Path(place).glob("*.txt")))
    recipe = small_recipe(batch_size=4, auxiliary=None)
    run_recipe(recipe, text, Path(place) / "two", held_out=small_held_out())


def work_queue(place: str, announced: str) -> None:
    """Work on a queue of every recipe in ``place``; what it says goes to a file."""
    root = Path(place)
    queue.WAIT_SECONDS = 0.05
    found = schemes([str(path) for path in sorted(root.glob("*.toml"))], (5, 6), root / "out")
    text = texts(sorted(root.glob("*.txt")))
    with open(announced, "w", encoding="utf-8") as file:
        said: Callable[[str], object] = lambda line: file.write(f"{line}\n")  # noqa: E731
        queue.Queue(found, text, held_out=small_held_out(), announce=said).work()


JOBS: Mapping[str, Callable[..., None]] = {
    job.__name__: job for job in (between_checkpoints, while_writing, removal, replica, work_queue)
}


def fork(name: str, arguments: list[object]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.dup2(2, 1)  # stdout is for answers
        JOBS[name](*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    for line in sys.stdin:
        children = [fork(name, arguments) for name, *arguments in json.loads(line)]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(statuses), flush=True)


if __name__ == "__main__":
    main()
