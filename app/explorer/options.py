"""What ``normlens app`` was started with."""

from __future__ import annotations

import os

from normlens.errors import UsageError
from normlens.workbench.launch import Launch

MOST_SLOTS = 4


def read_options() -> Launch:
    """The options of this server, the same for every session.

    Raises:
        UsageError: a variable cannot be read, or names too many models.
    """
    launch = Launch.from_environment(os.environ)
    if not 1 <= len(launch.models) <= MOST_SLOTS:
        raise UsageError(
            f"{len(launch.models)} models were named; the explorer shows 1 to {MOST_SLOTS} at once"
        )
    return launch
