"""The process that does a job: ``python -m normlens.workbench.job_work DIRECTORY``."""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from normlens.errors import NormlensError
from normlens.workbench.choices import ModelChoice
from normlens.workbench.job_order import ORDER, PROGRESS, Order
from normlens.workbench.progress_file import ProgressFile

if TYPE_CHECKING:
    from normlens.models.lens import Lens

INTERRUPTED = 130


def work(directory: Path) -> int:
    """Do the order in ``directory``, telling ``progress.json`` there; returns an exit code.

    A request to terminate ends it as Ctrl+C does: files that were being written are removed,
    and what is stored stays, so that the same order goes on where this one stopped.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = ProgressFile(directory / PROGRESS)
    try:
        order = Order.from_json((directory / ORDER).read_text(encoding="utf-8"))
        _run(order, progress)
    except NormlensError as error:
        return _fail(progress, str(error), error.exit_code)
    except KeyboardInterrupt:
        progress.end("cancelled")
        return INTERRUPTED
    except Exception as error:  # the explorer must learn that the job has ended
        progress.end("failed", f"{type(error).__name__}: {error}; see the log")
        raise
    progress.end("done")
    return 0


def _fail(progress: ProgressFile, message: str, code: int) -> int:
    print(message, file=sys.stderr)
    progress.end("failed", message)
    return code


def _run(order: Order, progress: ProgressFile) -> None:
    from normlens.side_by_side import compare
    from normlens.text.documents import read_documents

    documents = read_documents(order.corpus.text)
    opened = {
        shown: _Opener(choice, shown, order.store, progress)
        for shown, choice in zip(order.shown, order.models, strict=True)
    }
    reference = order.reference
    compare(
        opened,
        documents,
        order.names,
        sequences=order.corpus.sequences or None,
        context=order.corpus.context,
        bos=order.corpus.bos,
        parameters=order.parameters,
        batch_size=order.batch_size,
        store=Path(order.store),
        fresh=order.fresh,
        command=order.command,
        reference=None
        if reference is None
        else _Opener(reference, reference.name, order.store, progress),
        progress=progress.reporter,
    )


@dataclass(frozen=True)
class _Opener:
    choice: ModelChoice
    shown: str
    store: str
    progress: ProgressFile

    def __call__(self) -> Lens:
        from normlens.models.recorded import open_recorded
        from normlens.records import Records

        self.progress.opening(self.shown)
        return open_recorded(
            self.choice.source,
            Records(Path(self.store)),
            device=self.choice.device,
            dtype=self.choice.dtype,
            revision=self.choice.revision,
            convert=self.choice.convert,
            name=self.shown,
        )


def _main() -> None:
    parser = argparse.ArgumentParser(description="Do the job described in a directory.")
    parser.add_argument("directory", type=Path)
    sys.exit(work(parser.parse_args().directory))


if __name__ == "__main__":
    _main()
