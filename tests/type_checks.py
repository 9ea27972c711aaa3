"""Which runtime check a function of normlens gets under the import hook.

jaxtyping's decorator binds every call's arguments to relate the shapes among them, and checks
them twice. A function whose annotations name no shape needs none of that: beartype alone
checks the same annotations at a fraction of the cost, which half of the time of the tests
would otherwise go into.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, get_args, get_type_hints

import jaxtyping
from jaxtyping import AbstractArray, jaxtyped


def install(package: str) -> None:
    """Check the annotations of ``package``, which nothing may have imported yet."""
    jaxtyping.install_import_hook(package, "beartype.beartype")
    # Modules under the hook look the decorator up here when they are run.
    jaxtyping.jaxtyped = checked  # type: ignore[assignment]


def checked(target: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """``jaxtyped`` where an annotation has a shape or cannot be read yet, else ``typechecker``."""
    if target is None:
        return partial(checked, typechecker=typechecker)
    if inspect.isclass(target):
        exempt = getattr(target, "__no_type_check__", False)
        if dataclasses.is_dataclass(target) and "__init__" in vars(target) and not exempt:
            target.__init__ = checked(target.__init__, typechecker=typechecker)
        return target
    if not isinstance(target, FunctionType) or _names_shapes(target):
        return jaxtyped(target, typechecker=typechecker)
    return typechecker(target)


def _names_shapes(function: FunctionType) -> bool:
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception:  # whatever evaluating an annotation raises
        return True
    return any(map(_has_shape, hints.values()))


def _has_shape(hint: Any) -> bool:
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(map(_has_shape, get_args(hint)))
