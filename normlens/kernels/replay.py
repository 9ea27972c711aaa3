"""Replaying the scales of a clean run: the per-token freeze, as an intervention.

1. Run the model on some tokens and record what every norm divides each token by.
2. Within :func:`replayed_scales` the model divides by these instead, whatever else is done to
   it: patching or ablation then acts on a model that is linear in its norms.

Nothing done, the logits stay as they are: the factor is 1. This is the LN rule of layer-wise
relevance propagation (2202.07304).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.errors import UsageError
from normlens.hooks import Hook, hooked
from normlens.kernels.freezing import freeze_hooks, removal_order
from normlens.kernels.token_scale import input_scale
from normlens.models.layout import by_position
from normlens.models.lens import Lens, NormSite

Scales = Mapping[NormSite, Float[Tensor, "batch pos *head"]]


@torch.inference_mode()
def record_scales(
    lens: Lens, ids: Int[Tensor, "batch pos"], sites: Sequence[NormSite] | None = None
) -> dict[NormSite, Float[Tensor, "batch pos *head"]]:
    """What each norm with a live scale divides every token by, in a clean run.

    Args:
        lens: the model, which is left as it is.
        ids: tokens without padding.
        sites: norms with a live scale; by default all of them.

    Returns:
        Per site in residual units, ``[batch pos]``, or ``[batch pos head]`` per head.

    Raises:
        UsageError: a site has no live scale.
    """
    chosen = removal_order(lens.sites) if sites is None else tuple(sites)
    for site in chosen:
        if not site.spec.kind.has_live_scale:
            raise UsageError(f"norm {site.label} is {site.spec.kind.value}: it has no live scale")
    records = {site: _Record(site, *ids.shape) for site in chosen}
    hooks = [Hook(lens.module(s), "input", record, s.label) for s, record in records.items()]
    with hooked(lens.model, hooks):
        lens.model(input_ids=ids.to(lens.model.device), use_cache=False)
    return {site: record.scale for site, record in records.items()}


@contextmanager
def replayed_scales(lens: Lens, scales: Scales) -> Iterator[None]:
    """Within the block every forward pass divides by ``scales`` instead of its own.

    Args:
        lens: the model; its lock is held and its modules are as before afterwards.
        scales: of :func:`record_scales`, for batches of that shape.

    Raises:
        HookMismatch: the block ran no forward pass.
    """
    with hooked(lens.model, freeze_hooks(lens, scales), fires=None):
        yield


class _Record:
    """Keeps the scale of one norm per token."""

    def __init__(self, site: NormSite, batch: int, pos: int) -> None:
        self._site, self._shape = site, (batch, pos)
        self.scale = torch.empty(0)

    def __call__(self, x: Tensor) -> None:
        scale = input_scale(self._site.spec, x)
        self.scale = by_position(self._site, scale, *self._shape).clone()
