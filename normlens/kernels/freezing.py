"""Replacing a live scale by another one, in place, in a forward pass.

A norm's output is ``y = beta + gamma * centred / scale``, by whatever statistic it divides,
so with the scale replaced by ``s`` it is ``beta + (y - beta) * scale / s``: one hook reads
the live scale from the norm's input, one rescales its output. The module itself is not
touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.hooks import Hook
from normlens.kernels.token_scale import input_scale
from normlens.models.affine import site_affine
from normlens.models.layout import as_seen
from normlens.models.lens import Layout, Lens, NormSite, Role

REMOVED_FIRST = (Role.PRE_MLP, Role.PRE_ATTN)


def removal_order(sites: Sequence[NormSite]) -> tuple[NormSite, ...]:
    """Sites with a live scale in the order norms are removed in.

    MLP norms by layer, attention norms by layer, all others in order of execution, the
    final norm last (2507.02559).
    """

    def rank(site: NormSite) -> tuple[int, int]:
        if site.role is Role.FINAL:
            return len(REMOVED_FIRST) + 1, site.order
        known = site.role in REMOVED_FIRST
        return REMOVED_FIRST.index(site.role) if known else len(REMOVED_FIRST), site.order

    return tuple(sorted((s for s in sites if s.spec.kind.has_live_scale), key=rank))


def freeze_hooks(
    lens: Lens, scales: Mapping[NormSite, Float[Tensor, "batch pos *head"]]
) -> tuple[Hook, ...]:
    """Hooks that make each site divide by the given scale instead of its own.

    Args:
        lens: the model.
        scales: per site with a live scale, what each token is divided by, residual units;
            one per head where the norm sees each head by itself, or one for all of them.
    """
    hooks: list[Hook] = []
    for site, scale in scales.items():
        _, beta = site_affine(lens, site)
        freeze = _Freeze(site, beta, as_seen(site, scale))
        module = lens.module(site)
        hooks.append(Hook(module, "input", freeze.read, site.label))
        hooks.append(Hook(module, "output", freeze.rescale, site.label))
    return tuple(hooks)


class _Freeze:
    def __init__(self, site: NormSite, beta: Tensor | None, scale: Tensor) -> None:
        self._spec = site.spec
        self._beta = beta
        if beta is not None and beta.ndim > 1 and site.layout is Layout.BATCH_HEAD_POS:
            self._beta = beta[:, None]
        self._scale = scale
        self._live = scale

    def read(self, x: Tensor) -> None:
        self._live = input_scale(self._spec, x)

    def rescale(self, y: Tensor) -> Tensor:
        wide = y.to(torch.promote_types(y.dtype, torch.float32))
        ratio = (self._live / self._scale).to(wide.dtype)[..., None]
        if self._beta is None:
            return (wide * ratio).to(y.dtype)
        beta = self._beta.to(wide.dtype)
        return torch.addcmul(beta, wide - beta, ratio).to(y.dtype)
