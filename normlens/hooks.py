"""The only place that registers hooks.

One context manager attaches hooks, holds the model's lock while they are attached,
removes them whatever happens, and fails when one fired another number of times than
expected: a hook that never fires is a silent wrong answer.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from normlens.errors import HookMismatch

# Keyed weakly by model: callers in one process share a model, and the lock must be
# found from the model alone without adding an attribute to it.
_LOCKS: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_LOCKS_GUARD = threading.Lock()


@dataclass(frozen=True)
class Hook:
    """Call ``fn`` with a module's first input or its (first) output tensor.

    ``fn`` returns a tensor to use instead, or None to leave the value as it is.
    """

    module: nn.Module
    where: Literal["input", "output"]
    fn: Callable[[Tensor], Tensor | None]
    name: str = ""


def model_lock(model: nn.Module) -> threading.RLock:
    """The lock that guards a model's hooks; the same one for every caller."""
    with _LOCKS_GUARD:
        return _LOCKS.setdefault(model, threading.RLock())


@contextmanager
def hooked(model: nn.Module, hooks: Sequence[Hook], *, fires: int | None = 1) -> Iterator[None]:
    """Attach ``hooks`` for the duration of the block.

    Args:
        model: the model whose lock is held.
        hooks: what to attach; order is kept among hooks of one module.
        fires: how often each hook must have fired when the block ends without an
            exception; None asks for at least once.

    Raises:
        HookMismatch: a hook fired another number of times.
    """
    attached: list[_Attached] = []
    with model_lock(model):
        try:
            for hook in hooks:
                attached.append(_Attached(hook))
            yield
        finally:
            for one in attached:
                one.handle.remove()
    for one in attached:
        if one.count != fires if fires is not None else one.count == 0:
            hook, wanted = one.hook, "at least once" if fires is None else f"{fires} time(s)"
            name = hook.name or type(hook.module).__name__
            raise HookMismatch(
                f"the {hook.where} hook on {name} fired {one.count} time(s), expected {wanted}; "
                "the model does not run this module in its forward pass as discovered"
            )


def hook_count(model: nn.Module) -> int:
    """Number of forward hooks attached anywhere in ``model``."""
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


class _Attached:
    """One hook on its module, and how often it fired."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.count = 0
        if hook.where == "input":
            self.handle = hook.module.register_forward_pre_hook(self.before, with_kwargs=True)
        else:
            self.handle = hook.module.register_forward_hook(self.after)

    def before(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.count += 1
        if args:
            new = self.hook.fn(args[0])
            return None if new is None else ((new, *args[1:]), kwargs)
        name = next(iter(kwargs))
        new = self.hook.fn(kwargs[name])
        return None if new is None else (args, {**kwargs, name: new})

    def after(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        self.count += 1
        if isinstance(output, tuple):
            new = self.hook.fn(output[0])
            return None if new is None else (new, *output[1:])
        return self.hook.fn(output)
