"""The command line: thin, and a loop over the registry.

Exit codes: 0 fine; 1 a self-check failed (results are still written); 2 the request is
wrong; 3 a model or data set cannot be opened; 4 only part of the work could be done;
130 interrupted.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``normlens`` command."""
    from normlens.cli.app import run_command

    sys.exit(run_command(sys.argv[1:]))
