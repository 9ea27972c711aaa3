"""Kernel of ``curves``: the input-output curve of every norm, before its gain and bias.

1. At every norm the input x of each real token, and ``xhat`` from the norm's spec in float64
   (:func:`normlens.norms.apply_norm`, which every site was verified against when opened).
2. Every element ``(x, xhat)`` of every token goes into a bin of x (:mod:`curve_bins`), first
   tokens apart. A norm that sees each head by itself has one vector per head.
3. Per token the slope ``1 / scale``: one token alone is an affine function of its elements,
   so the bend of the whole is in how these slopes vary with the size of a token's elements.
   Per sequence the count, sum and sum of squares of the slopes, weighted by the document's
   bootstrap weights, and a log histogram for the quantiles.
4. From the bins of each site the fits (:mod:`curve_fits`), their errors over ranges of
   ``|x|``, and how far the curve is straight (:mod:`curve_shape`).

Tokens with an input or ``xhat`` that is not finite are counted apart and left out; they turn
the row's status into ``overflow``.

Sources: DyT 2503.10622, section 4.1 and figure 2 (the curves), eq. 1; Stollenwerk 2503.21708
(tanh and ELN as approximations of layer normalization).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.points import Point
from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import State
from normlens.capture.statistics import BIN_COUNT, log_histogram
from normlens.errors import NotApplicable
from normlens.kernels.curve_bins import MAGNITUDES, SUMS, curve_sums
from normlens.kernels.curves_summary import GROUPS, known_sites, summarise
from normlens.models.layout import as_seen, by_position
from normlens.norms.reference import apply_norm
from normlens.norms.spec import NormKind
from normlens.text.sequences import Batch


def _init(context: Context) -> State:
    sites = len(known_sites(context.lens))
    if not sites:
        what = "norm whose kind is known" if context.lens.sites else "norm"
        raise NotApplicable(f"{context.lens.identity.name} has no {what}")
    groups = len(GROUPS)
    curves = torch.zeros(sites, groups, 2, MAGNITUDES, len(SUMS), dtype=torch.float64)
    replicates = torch.zeros(context.replicates, sites, groups, 3, dtype=torch.float64)
    state = State()
    state.declare("curves", curves)
    state.declare("tokens", torch.zeros(sites, groups, dtype=torch.int64))
    state.declare("overflow", torch.zeros(sites, groups, dtype=torch.int64))
    state.declare("slopes", torch.zeros(sites, groups, 3, dtype=torch.float64))
    state.declare("histogram", torch.zeros(sites, groups, BIN_COUNT, dtype=torch.int64))
    state.declare("replicates", replicates)
    return state


def _reduce(point: Point, value: Tensor, batch: Batch, context: Context) -> Mapping[str, Tensor]:
    site = point.site
    assert site is not None, "the need is NORM_INPUT"
    if site.spec.kind is NormKind.OPAQUE:
        return {}
    parts = apply_norm(site.spec, value, None, None)
    # A sum is finite iff its terms are, and cheaper than looking at each; DyT maps inf to 1.
    finite = (parts.centred.sum(-1) + parts.xhat.sum(-1)).isfinite()
    curves, counts = [], []
    for members in (batch.first, batch.rest):
        wanted = as_seen(site, members).expand(finite.shape)
        kept = wanted & finite
        curves.append(curve_sums(value[kept], parts.xhat[kept]))
        counts.append(torch.stack([kept.sum(), (wanted & ~finite).sum()]))
    found = {"curves": torch.stack(curves), "counts": torch.stack(counts)}
    if parts.scale is not None:
        slopes = torch.where(finite, 1 / parts.scale[..., 0], torch.nan)
        found |= _slopes(by_position(site, slopes, *batch.ids.shape), batch)
    return found


def _slopes(slopes: Float[Tensor, "batch pos *head"], batch: Batch) -> Mapping[str, Tensor]:
    """Per group and sequence the count, sum and sum of squares of finite slopes; a histogram."""
    by_vector = slopes.reshape(*slopes.shape[:2], -1)
    sums, histograms = [], []
    for members in (batch.first, batch.rest):
        counted = members[..., None] & by_vector.isfinite()
        kept = torch.where(counted, by_vector, 0.0)
        powers = torch.stack([counted.double(), kept, kept.square()])
        sums.append(powers.sum((-1, -2)))
        histograms.append(log_histogram(by_vector[counted]))
    return {"slopes": torch.stack(sums), "histogram": torch.stack(histograms)}


def _update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    sites = known_sites(context.lens)
    seen = [observed.reduced[f"norm_input.{site.label}"] for site in sites]
    counts = torch.stack([one["counts"] for one in seen])
    state.add("curves", torch.stack([one["curves"] for one in seen]))
    state.add("tokens", counts[..., 0])
    state.add("overflow", counts[..., 1])
    scaled = [i for i, one in enumerate(seen) if "slopes" in one]
    if not scaled:
        return
    slopes = torch.zeros(len(sites), len(GROUPS), 3, len(batch.index), dtype=torch.float64)
    slopes[scaled] = torch.stack([seen[i]["slopes"] for i in scaled]).cpu().double()
    histogram = torch.zeros_like(state.tensors["histogram"])
    histogram[scaled] = torch.stack([seen[i]["histogram"] for i in scaled])
    state.add("slopes", slopes.sum(-1))
    state.add("histogram", histogram)
    state.add("replicates", torch.einsum("rb,sgpb->rsgp", batch.weights, slopes))


def _finish(state: State, context: Context) -> Finding:
    return summarise(state, context)


KERNEL = Streaming(init=_init, update=_update, finish=_finish, reduce=_reduce)
"""What the runner looks up."""
