"""The one place where errors become words on a page."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from explorer import markup
from normlens.errors import NormlensError

LOG = logging.getLogger("normlens.explorer")


def guarded(render: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``render``; an error becomes one line where it happened, and the page goes on.

    Errors of normlens say what is wrong and what to do. Any other is a defect: its class and
    message are shown and its trace is logged. Returns None after an error.
    """
    try:
        return render(*args, **kwargs)
    except NormlensError as error:
        markup.note(str(error), "error")
    except Exception as error:  # a defect in one part must not take the page away
        LOG.exception("a part of the page failed")
        markup.note(
            f"{type(error).__name__}: {error}. This is a defect of the explorer; its log has "
            "the trace.",
            "error",
        )
    return None
