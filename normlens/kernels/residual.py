"""Kernel of ``residual``: how the residual stream grows and turns from block to block.

1. At every point (before each block and after the last) and token: the L2 norm and the
   variance over d_model.
2. For every block and token, between its input and its output: ``1 - cos`` and the angle over
   pi (:mod:`alignment`), of the vectors, of the centred vectors and of the vectors without
   their largest coordinates.
3. Per token group float64 sums, and a log histogram of the norm; per sequence the sums of
   ``ln norm`` and of the angles, weighted by the document's bootstrap weights.
4. Check: the norm at the last point is that of what the final norm reads.

Growth and the first token's ratio are quotients of geometric means, ``exp(mean ln norm)``,
which a few large tokens cannot own and whose replicates add up; medians stand beside them.
Tokens where a quantity is not finite (or a vector is 0) are counted apart at that point.

Sources: 2502.05795 (variance and angular distance by depth); 2403.03853 eq. 1 (block
influence); 2402.17762 (the first token's norm).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.forward import input_moments
from normlens.capture.points import Point
from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.capture.statistics import BIN_COUNT, log_histogram
from normlens.capture.steps import Step
from normlens.kernels.alignment import alignment, centred, distance, widen, without_largest
from normlens.kernels.residual_summary import GROUPS, STEP_MEASURES, final_site, summarise
from normlens.kernels.token_sums import add_token_sums, declare_token_sums
from normlens.models.blocks import block_modules
from normlens.text.sequences import Batch


def _init(context: Context) -> State:
    layers, replicates = len(block_modules(context.lens.model)), context.replicates
    state = State()
    for group in GROUPS:
        declare_token_sums(
            state, f"points.{group}", (layers + 1,),
            measures=3, bootstrapped=1, replicates=replicates,
        )  # fmt: skip
        declare_token_sums(
            state, f"steps.{group}", (layers,),
            measures=len(STEP_MEASURES), bootstrapped=2, replicates=replicates,
        )  # fmt: skip
        histogram = torch.zeros(layers + 1, BIN_COUNT, dtype=torch.int64)
        state.declare(f"histogram.{group}", histogram)
    state.declare("final", torch.tensor(-math.inf).double(), Reduction.MAX)
    return state


def _reduce(point: Point, value: Step, batch: Batch, context: Context) -> Mapping[str, Tensor]:
    before, after = widen(value.before), widen(value.after)
    trimmed = without_largest(before, after, context.parameters.massive)
    apart = distance(centred(before), centred(after)), distance(*trimmed)
    kept = {
        "before": _norm_and_variance(before),
        "step": torch.cat([alignment(before, after), torch.stack(apart)]),
    }
    # What follows any other block is what precedes the next one.
    if point.layer == len(block_modules(context.lens.model)) - 1:
        kept["after"] = _norm_and_variance(after)
    return kept


def _norm_and_variance(x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "2 batch pos"]:
    return torch.stack([x.norm(dim=-1), input_moments(x)[1]])


def _update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    layers = len(block_modules(context.lens.model))
    seen = [observed.reduced[f"steps.{layer}"] for layer in range(layers)]
    points = torch.stack([*(one["before"] for one in seen), seen[-1]["after"]], 1).cpu().double()
    norm, variance = points  # [point batch pos]
    values = torch.stack([norm, norm.log(), variance])
    steps = torch.stack([one["step"] for one in seen], 1).cpu().double()
    for group, members in zip(GROUPS, (batch.first, batch.rest), strict=True):
        tokens, weights = members.cpu(), batch.weights
        log_norm = slice(1, 2)
        counted = add_token_sums(state, f"points.{group}", tokens, values, log_norm, weights)
        histograms = [log_histogram(v[c]) for v, c in zip(norm, counted, strict=True)]
        state.add(f"histogram.{group}", torch.stack(histograms))
        add_token_sums(state, f"steps.{group}", tokens, steps, slice(2), weights)
    site = final_site(context.lens)
    if site is not None:
        mean, spread = observed.norm_moments[site.label].cpu().double()
        read = ((spread + mean.square()) * site.spec.width).sqrt()
        apart = (norm[-1] - read).abs() / read
        state.add("final", torch.where(batch.mask.cpu() & apart.isfinite(), apart, 0.0).max())


def _finish(state: State, context: Context) -> Finding:
    return summarise(state, context)


KERNEL = Streaming(init=_init, update=_update, finish=_finish, reduce=_reduce)
"""What the runner looks up."""
