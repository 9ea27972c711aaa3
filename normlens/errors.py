"""Every error a user can meet, and what each one asks of them.

::

    NormlensError                 base: one line that says what, where and what to do
    ├── UsageError                the request is wrong (exit code 2)
    │   ├── UnknownName           no analysis, model or recipe of that name
    │   └── NotApplicable         the analysis does not apply to this model, and why
    ├── LoadError                 a model or data set cannot be opened (exit code 3)
    │   ├── ModelNotFound         nothing at this id or path
    │   ├── CorruptModel          files are there but cannot be trusted
    │   └── BadText               a text is empty, not UTF-8, or unusable
    ├── VerificationError         a number failed its own check (exit code 1)
    │   ├── HookMismatch          a hook fired another number of times than expected
    │   └── ComponentMismatch     the component view disagrees with the model
    ├── StoreMismatch             stored results belong to another computation (exit code 2)
    ├── OutputError               the output cannot be written (exit code 2)
    └── TrainingDiverged          the loss left the rails; the checkpoint is kept (exit code 1)
"""

from __future__ import annotations


class NormlensError(Exception):
    """Base of all errors that normlens raises on purpose.

    ``exit_code`` is what the command line returns for it.
    """

    exit_code = 1


class UsageError(NormlensError):
    """The request itself is wrong: an option, a name or a combination."""

    exit_code = 2


class UnknownName(UsageError):
    """No object of that name is registered."""


class NotApplicable(UsageError):
    """The analysis does not apply to this model; the message says why."""


class LoadError(NormlensError):
    """A model or a data set could not be opened."""

    exit_code = 3


class ModelNotFound(LoadError):
    """There is no model at the given id or path."""


class CorruptModel(LoadError):
    """The model's files exist but contradict each other or cannot be read."""


class BadText(LoadError):
    """A text is missing, empty, not UTF-8 or otherwise unusable."""


class VerificationError(NormlensError):
    """A number failed the check that would have made it trustworthy."""


class HookMismatch(VerificationError):
    """A hook fired another number of times than the pass expected."""


class ComponentMismatch(VerificationError):
    """The component view and the original model give different log-probabilities."""


class StoreMismatch(UsageError):
    """Stored shards or results belong to another computation."""


class OutputError(UsageError):
    """The output location cannot be written."""


class TrainingDiverged(NormlensError):
    """Training was stopped because the loss became non-finite or jumped."""
