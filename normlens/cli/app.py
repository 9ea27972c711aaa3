"""The command tree and its one place for errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from normlens import __version__
from normlens.cli import compare, convert, explorer, family, inspect, remove_norm, run, show, train
from normlens.errors import NormlensError

INTERRUPTED = 130
USAGE = 2

app = App(
    name="normlens",
    version=__version__,
    help=(
        "What normalization does inside a transformer, and what changes when it is gone.\n\n"
        "Start with `normlens models`, then "
        "`normlens compare books-ln books-lnfree --out out/first`."
    ),
    help_format="markdown",
    result_action="return_value",
)
inspect.register(app)
run.register(app)
compare.register(app)
show.register(app)
convert.register(app)
train.register(app)
remove_norm.register(app)
family.register(app)
explorer.register(app)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code, errors are one line on stderr."""
    try:
        code = app(list(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return _fail(" ".join(str(error).split()), USAGE)
    except NormlensError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted; the same command goes on where this one stopped", INTERRUPTED)
    except BrokenPipeError:
        return 0
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"normlens: {' '.join(message.split())}", file=sys.stderr)
    return code
