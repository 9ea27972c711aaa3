"""``normlens family``: train normalization schemes side by side, as a resumable queue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from normlens.cli.training_options import TextChoice, training_text
from normlens.errors import UsageError

if TYPE_CHECKING:
    from normlens.training.queue_status import QueueStatus

PARTIAL = 4
Flag = Parameter(negative=())


@Parameter(name="*")
@dataclass(frozen=True)
class FamilyOptions:
    """Where the queue is worked on."""

    device: str = "cpu"
    """Torch device: cpu, cuda, cuda:1, mps."""
    threads: int = 1
    """CPU threads of this process; another number rounds differently."""


def register(app: App) -> None:
    """Add the command."""
    app.command(family)


def family(
    *names: str,
    out: Path = Path("runs/family"),
    seeds: Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative=())] = (),
    status: Annotated[bool, Flag] = False,
    text: TextChoice | None = None,
    options: FamilyOptions | None = None,
) -> int:
    """Train normalization schemes under equal conditions, most important first.

    Each scheme is a recipe: short runs choose its learning rate, then it is trained once per
    seed. The same command goes on where it was interrupted, and started twice it shares the
    runs between the two processes. A run whose loss diverges is recorded and not tried again.

    Examples: `normlens family --books BOOKS` trains the bundled family into runs/family,
    `normlens family --status` shows how far that is.

    `normlens family ln-gelu rms --books BOOKS --seeds 1 2 3 --device cuda`

    Parameters
    ----------
    names
        Bundled recipes of the family or .toml files, most important first; all of the
        family by default.
    out
        Directory of the runs: SCHEME/sweep.json and SCHEME/seed-SEED/model.
    seeds
        Seeds of the runs; each recipe's own by default.
    status
        Print what is done and what is left; nothing is trained or written.
    """
    from normlens.training.family import schemes

    found = schemes(names, seeds, out)
    if status:
        from normlens.training.queue_status import queue_status

        _print_status(queue_status(found))
        return 0

    import torch

    from normlens.cli.training_progress import queue_progress
    from normlens.models.devices import usable_device
    from normlens.text import read_documents
    from normlens.training.queue import Queue

    text, options = text or TextChoice(), options or FamilyOptions()
    chosen = training_text(text)
    if options.threads < 1:
        raise UsageError(f"--threads is {options.threads}; give 1 or more")
    torch.set_num_threads(options.threads)
    usable_device(options.device)
    with queue_progress() as show:
        failed = Queue(
            schemes=found,
            text=chosen,
            held_out=read_documents(str(text.held_out)) if text.held_out else None,
            device=options.device,
            command=f"normlens family {{scheme}} --seeds {{seed}} {chosen.option}",
            report=show.report,
            announce=show.announce,
        ).work()
    for label, reason in failed.items():
        print(f"{label} failed: {reason}")
    print(out)
    return PARTIAL if failed else 0


def _print_status(found: QueueStatus) -> None:
    import pandas as pd

    from normlens.cli.tables import console, print_frame
    from normlens.cli.training_progress import duration

    rows = [
        {
            "run": run.label,
            "state": run.state,
            "steps": f"{run.step}/{run.steps}",
            "loss": run.loss,
            "held-out loss": run.held_out_loss,
            "tokens/s": run.tokens_per_second,
            "left": duration(run.seconds_left) if run.state in ("training", "stopped") else "",
            "remark": run.remark,
        }
        for run in found.runs
    ]
    print_frame(pd.DataFrame(rows))
    ended = sum(run.state in ("done", "diverged") for run in found.runs)
    left = "" if math.isnan(found.seconds_left) else f", about {duration(found.seconds_left)} left"
    console().print(f"{ended} of {len(found.runs)} runs ended{left}; losses in nats/token")
