"""Devices by name."""

from __future__ import annotations

import torch

from normlens.errors import UsageError


def usable_device(name: str) -> torch.device:
    """The torch device of that name.

    Raises:
        UsageError: there is none on this machine.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device {name!r} cannot be used here: {reason}") from error
    return device
