"""Opened models that sessions of one process share: few, locked while in use, let go in turn."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from normlens.records import Records
from normlens.workbench.check import ModelCheck, check_lens, memory_bytes
from normlens.workbench.choices import ModelChoice
from normlens.workbench.sources import Sources

if TYPE_CHECKING:
    from normlens.models.lens import Lens

Waiting = Callable[[str], None]
"""Called with a model's name before waiting for another session to finish with it."""


@dataclass
class _Slot:
    """One choice: the lock of who opens or runs it, and the model once it is open."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    lens: Lens | None = None
    users: int = 0


def quietly(_name: str) -> None:
    """Say nothing."""


class ModelPool:
    """At most ``most`` opened models; the one that was used longest ago goes first.

    A model in use is never let go, so more than ``most`` are open while that many are in use.

    Args:
        most: how many stay open.
        store: directory where it is noted what each model opened as, None to note nothing.
    """

    def __init__(self, most: int = 4, store: Path | None = None) -> None:
        self.most = most
        self._records = Records(store)
        self._guard = threading.Lock()
        # transformers sets defaults of torch while it loads, and importing it from two threads
        # at once fails: models are opened one at a time.
        self._opening = threading.Lock()
        self._slots: OrderedDict[ModelChoice, _Slot] = OrderedDict()

    def open(self, choice: ModelChoice, sources: Sources) -> Lens:
        """The opened model; the second caller waits for the first and gets the same one.

        Raises:
            NormlensError: as :meth:`Sources.resolve` and :func:`normlens.models.open_model`.
        """
        with self.using(choice, sources) as lens:
            return lens

    @contextmanager
    def using(
        self, choice: ModelChoice, sources: Sources, waiting: Waiting = quietly
    ) -> Iterator[Lens]:
        """The opened model for the block alone; other callers wait until it ends.

        Args:
            choice: which model.
            sources: what may be opened.
            waiting: called with the model's name if another caller has it at the moment.

        Raises:
            NormlensError: as :meth:`open`.
        """
        source = sources.resolve(choice.source)
        slot = self._take(choice)
        try:
            if not slot.lock.acquire(blocking=False):
                waiting(choice.name)
                slot.lock.acquire()
            try:
                if slot.lens is None:
                    slot.lens = self._opened(choice, source)
                yield slot.lens
            finally:
                slot.lock.release()
        finally:
            self._give_back(slot)

    def release(self, choice: ModelChoice) -> None:
        """Let a model go; a caller that is using it keeps it until done."""
        with self._guard:
            self._slots.pop(choice, None)

    def loaded(self) -> tuple[ModelChoice, ...]:
        """The choices that are open, the one used longest ago first."""
        with self._guard:
            return tuple(choice for choice, slot in self._slots.items() if slot.lens is not None)

    def busy(self, choice: ModelChoice) -> bool:
        """Whether someone is opening or running the model."""
        with self._guard:
            slot = self._slots.get(choice)
            return slot is not None and slot.users > 0

    def memory(self, choice: ModelChoice) -> int:
        """Bytes of the model's parameters and buffers; 0 where it is not open."""
        with self._guard:
            slot = self._slots.get(choice)
        return 0 if slot is None or slot.lens is None else memory_bytes(slot.lens)

    def check(self, choice: ModelChoice, sources: Sources) -> ModelCheck:
        """Open the model and describe what inspection found.

        Raises:
            NormlensError: as :meth:`open`.
        """
        with self.using(choice, sources) as lens:
            return check_lens(lens)

    def _opened(self, choice: ModelChoice, source: str) -> Lens:
        with self._opening:
            from normlens.models.recorded import open_recorded

            return open_recorded(
                source,
                self._records,
                device=choice.device,
                dtype=choice.dtype,
                revision=choice.revision,
                convert=choice.convert,
            )

    def _take(self, choice: ModelChoice) -> _Slot:
        with self._guard:
            slot = self._slots.setdefault(choice, _Slot())
            slot.users += 1
            self._slots.move_to_end(choice)
            return slot

    def _give_back(self, slot: _Slot) -> None:
        with self._guard:
            slot.users -= 1
            idle = [choice for choice, one in self._slots.items() if not one.users]
            empty = [choice for choice in idle if self._slots[choice].lens is None]
            surplus = len(self._slots) - len(empty) - self.most
            full = [choice for choice in idle if choice not in empty]
            for choice in (*empty, *full[: max(0, surplus)]):
                del self._slots[choice]
