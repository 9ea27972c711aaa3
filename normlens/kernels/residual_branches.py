"""Kernel of ``branches``: what attention and MLP add to the residual, against its size.

With the block's input x, its branches a (attention) and m (MLP) and the model's branch scale
s, ``output = x + s (a + m)``, in sequential and in parallel blocks alike. What a branch adds
is ``b = s a`` or ``s m``, after any norm that follows the branch.

1. Per block, branch and token: ``|b|``, the ratio ``|b| / |x|``, and the cosine of b and x,
   as they are and centred over d_model.
2. Per token group float64 sums; per sequence the ratio's, weighted by the document's bootstrap
   weights.
3. Check: at every token of every block the terms add up to the block's output.

Tokens where a quantity is not finite (or a vector is 0) are counted apart at that block.

Source: 2502.05795, sections 2-3 (growth of the residual against its updates).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.points import Point
from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.capture.steps import Step
from normlens.kernels.alignment import centred, widen
from normlens.kernels.residual_branches_summary import BRANCHES, GROUPS, MEASURES, summarise
from normlens.kernels.token_sums import add_token_sums, declare_token_sums
from normlens.models.blocks import block_modules
from normlens.models.components_scaling import scaling_of
from normlens.text.sequences import Batch

RATIO = slice(MEASURES.index("ratio"), MEASURES.index("ratio") + 1)


def _init(context: Context) -> State:
    layers = len(block_modules(context.lens.model))
    shape = (len(BRANCHES), layers)
    state = State()
    for group in GROUPS:
        declare_token_sums(
            state, group, shape,
            measures=len(MEASURES), bootstrapped=1, replicates=context.replicates,
        )  # fmt: skip
    state.declare("sum_error", torch.tensor(-math.inf).double(), Reduction.MAX)
    return state


def _reduce(point: Point, value: Step, batch: Batch, context: Context) -> Mapping[str, Tensor]:
    assert value.attention is not None and value.mlp is not None, "the need is BRANCH_STEPS"
    model = context.lens.model
    scale = scaling_of(model, block_modules(model)[0]).branch
    before, after = widen(value.before), widen(value.after)
    branches = [widen(branch) * scale for branch in (value.attention, value.mlp)]
    measures = [_measures(branch, before) for branch in branches]
    return {
        "branches": torch.stack(measures, 1),
        "sum_error": _sum_error((before, *branches), after),
    }


def _measures(
    branch: Float[Tensor, "batch pos d_model"], before: Float[Tensor, "batch pos d_model"]
) -> Float[Tensor, "measure batch pos"]:
    norm, norm_before = branch.norm(dim=-1), before.norm(dim=-1)
    cosine = torch.linalg.vecdot(branch, before) / (norm * norm_before)
    branch, before = centred(branch), centred(before)
    centred_norms = branch.norm(dim=-1) * before.norm(dim=-1)
    centred_cosine = torch.linalg.vecdot(branch, before) / centred_norms
    return torch.stack([norm, norm / norm_before, cosine, centred_cosine])


def _sum_error(
    terms: tuple[Float[Tensor, "batch pos d_model"], ...], after: Float[Tensor, "batch pos d_model"]
) -> Float[Tensor, "batch pos"]:
    """``|sum of terms - after| / max(1, sum |terms|)``, the largest over d_model."""
    total, absolute = torch.zeros_like(after), torch.zeros_like(after)
    for term in terms:
        total += term
        absolute += term.abs()
    return ((total - after).abs() / absolute.clamp_min(1)).amax(-1)


def _update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    layers = len(block_modules(context.lens.model))
    seen = [observed.reduced[f"branch_steps.{layer}"] for layer in range(layers)]
    # [measure branch layer batch pos]
    values = torch.stack([one["branches"] for one in seen], 2).cpu().double()
    for group, members in zip(GROUPS, (batch.first, batch.rest), strict=True):
        add_token_sums(state, group, members.cpu(), values, RATIO, batch.weights)
    errors = torch.stack([one["sum_error"] for one in seen]).cpu().double()
    real = batch.mask.cpu() & errors.isfinite()
    state.add("sum_error", torch.where(real, errors, 0.0).max())


def _finish(state: State, context: Context) -> Finding:
    return summarise(state, context)


KERNEL = Streaming(init=_init, update=_update, finish=_finish, reduce=_reduce)
"""What the runner looks up."""
