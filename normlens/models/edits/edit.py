"""What an edit is: a value that says what to do, and makes an edited copy of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from transformers import PreTrainedModel

from normlens.models.lens import Lens


@dataclass(frozen=True)
class Edited:
    """What an edit made: a model that shares its unchanged tensors with the one it came from.

    ``notes`` say, in words, what was left as it was and why.
    """

    model: PreTrainedModel
    notes: tuple[str, ...] = ()


@runtime_checkable
class Edit(Protocol):
    """One edit; frozen, so that it can be shown, stored and applied again.

    Calling it leaves the lens as it is and raises
    :class:`~normlens.errors.NotApplicable`, saying why, where it would be wrong.
    """

    @property
    def name(self) -> str:
        """What ``lens.edits`` records; it says everything that decides the new weights."""
        ...

    @property
    def tolerance(self) -> str | None:
        """The row of the tolerance file that the logits keep to; None for an inexact edit."""
        ...

    def __call__(self, lens: Lens) -> Edited:
        """The edited model."""
        ...
