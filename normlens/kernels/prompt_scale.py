"""Kernel of ``prompt-scale``: every norm's scale and the residual's size at every token.

1. Per site and token the scale as in ``scale`` (:mod:`token_scale`), the would-be one where
   the site is scale-free, and the L2 norm of the input, ``sqrt(width (var + mean**2))``.
2. Per point of the residual stream and token its L2 norm.
3. Check: the norm at the last point is that of what the final norm reads.

Sources: LayerNorm 1607.06450 eq. 3-4; RMSNorm 1910.07467 eq. 4.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from normlens.capture.points import Point, residual_points
from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.errors import NotApplicable
from normlens.kernels.prompt_scale_tables import input_norm_of, scale_of_site, summarise
from normlens.kernels.scale import why_no_scale
from normlens.kernels.scale_summary import known_sites
from normlens.kernels.token_scale import observed_scale
from normlens.models.blocks import block_modules
from normlens.models.tokenizers import tokenizer_of
from normlens.text.sequences import Batch


def _init(context: Context) -> State:
    lens = context.lens
    if not known_sites(lens):
        raise NotApplicable(why_no_scale(lens))
    tokenizer_of(lens)
    state = State()
    state.declare("ids", torch.zeros(0, dtype=torch.int64), Reduction.ROWS)
    points = len(block_modules(lens.model)) + 1
    state.declare("residual", torch.zeros(0, points, dtype=torch.float64), Reduction.ROWS)
    for site in lens.sites:
        vectors = torch.zeros(0, site.heads, dtype=torch.float64)
        state.declare(input_norm_of(site), vectors, Reduction.ROWS)
        if site.spec.kind.has_scale:
            state.declare(scale_of_site(site), vectors, Reduction.ROWS)
    return state


def _reduce(point: Point, value: Tensor, batch: Batch, context: Context) -> Mapping[str, Tensor]:
    wide = value.to(torch.promote_types(value.dtype, torch.float32))
    return {"norm": torch.linalg.vector_norm(wide, dim=-1)}


def _update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    real = slice(0, int(batch.mask[0].sum()))
    state.add("ids", batch.ids[0, real])
    points = residual_points(state.tensors["residual"].shape[1] - 1)
    norms = torch.stack([observed.reduced[point.name]["norm"][0, real] for point in points], -1)
    state.add("residual", norms)
    for site in context.lens.sites:
        mean, variance = observed.norm_moments[site.label][:, 0, real].double()
        norm = (site.spec.width * (variance + mean.square())).sqrt()
        state.add(input_norm_of(site), norm.view(len(norm), -1))
        if site.spec.kind.has_scale:
            scale = observed_scale(site, observed)[0, real]
            state.add(scale_of_site(site), scale.reshape(len(scale), -1))


def _finish(state: State, context: Context) -> Finding:
    return summarise(state, context)


KERNEL = Streaming(init=_init, update=_update, finish=_finish, reduce=_reduce)
"""What the runner looks up."""
