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
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.capture.forward import input_moments
from normlens.capture.points import Point
from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.capture.statistics import BIN_COUNT, log_histogram
from normlens.capture.steps import Step
from normlens.kernels.alignment import alignment, centred, distance, widen, without_largest
from normlens.kernels.residual_summary import GROUPS, STEP_MEASURES, final_site, summarise
from normlens.models.blocks import block_modules
from normlens.text.sequences import Batch


def _init(context: Context) -> State:
    layers, replicates = len(block_modules(context.lens.model)), context.replicates
    state = State()
    for group in GROUPS:
        for kind, count, sums, boot in (
            ("points", layers + 1, 3, 2),
            ("steps", layers, len(STEP_MEASURES), 3),
        ):
            state.declare(f"n.{kind}.{group}", torch.zeros(count, dtype=torch.int64))
            state.declare(f"overflow.{kind}.{group}", torch.zeros(count, dtype=torch.int64))
            state.declare(f"sums.{kind}.{group}", torch.zeros(sums, count, dtype=torch.float64))
            shape = (replicates, boot, count)
            state.declare(f"replicates.{kind}.{group}", torch.zeros(shape, dtype=torch.float64))
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
        counted = _add(state, f"points.{group}", members.cpu(), values, values[1:2], batch)
        histograms = [log_histogram(v[c]) for v, c in zip(norm, counted, strict=True)]
        state.add(f"histogram.{group}", torch.stack(histograms))
        _add(state, f"steps.{group}", members.cpu(), steps, steps[:2], batch)
    site = final_site(context.lens)
    if site is not None:
        mean, spread = observed.norm_moments[site.label].cpu().double()
        read = ((spread + mean.square()) * site.spec.width).sqrt()
        apart = (norm[-1] - read).abs() / read
        state.add("final", torch.where(batch.mask.cpu() & apart.isfinite(), apart, 0.0).max())


def _add(
    state: State,
    name: str,
    members: Bool[Tensor, "batch pos"],
    values: Float[Tensor, "measure place batch pos"],
    bootstrapped: Float[Tensor, "chosen place batch pos"],
    batch: Batch,
) -> Bool[Tensor, "place batch pos"]:
    """Add one token group; returns which tokens count at which place."""
    counted = members & values.isfinite().all(0)
    count = counted.sum(-1)  # [place batch]
    state.add(f"n.{name}", count.sum(-1))
    state.add(f"overflow.{name}", members.sum() - count.sum(-1))
    state.add(f"sums.{name}", torch.where(counted, values, 0.0).sum((-1, -2)))
    per_sequence = torch.where(counted, bootstrapped, 0.0).sum(-1)
    per_sequence = torch.cat([count[None].double(), per_sequence])
    state.add(f"replicates.{name}", torch.einsum("rb,mpb->rmp", batch.weights, per_sequence))
    return counted


def _finish(state: State, context: Context) -> Finding:
    return summarise(state, context)


KERNEL = Streaming(init=_init, update=_update, finish=_finish, reduce=_reduce)
"""What the runner looks up."""
