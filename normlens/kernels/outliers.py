"""Kernel of ``outliers``: outlier dimensions, massive activations and kurtoses.

1. Inside the pass every point of the residual stream and every input of attention and MLP
   is reduced to a few numbers per token and per dimension (:mod:`outlier_moments`), in the
   native basis and on request in a random one (:mod:`outlier_views`).
2. Inputs of attention and MLP: per dimension the number of tokens that reach the threshold,
   as it stands and in units of the token's own RMS.
3. Residual stream: each token's largest entry, the median magnitude of each sequence, and
   the massive activations by dimension and position (:mod:`outlier_massive`,
   :mod:`outlier_magnitudes`).
4. Sums over tokens are float64; first tokens are apart from the rest, padding never counts.
   Per-sequence sums of the kurtosis, weighted by the documents' bootstrap weights, give its
   interval.

Tokens with a NaN or an infinity are counted apart, left out of every number, and turn their
row's status into ``overflow``.

Sources: 2208.07339 section 4; 2402.17762 section 2; 2405.19279 eq. 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.capture.points import Point
from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.catalog.declaration import Need
from normlens.kernels.outlier_inputs import residual_width
from normlens.kernels.outlier_magnitudes import GROUPS, add_magnitudes, declare_magnitudes
from normlens.kernels.outlier_massive import magnitude_reduction
from normlens.kernels.outlier_moments import finite_tokens, group_rows, moments
from normlens.kernels.outlier_summary import summarise
from normlens.kernels.outlier_views import Basis, View, centres_residual, in_basis, views, views_at
from normlens.text.sequences import Batch


def _init(context: Context) -> State:
    seen = views(context.lens, rotate=context.parameters.rotate)
    points = sum(view.residual and view.basis is Basis.NATIVE for view in seen)
    inputs = sum(view.input is not None for view in seen)
    count, width = len(seen), residual_width(context.lens)
    state = State()
    state.declare("n", torch.zeros(GROUPS, count, dtype=torch.int64))
    state.declare("n_kurtosis", torch.zeros(GROUPS, count, dtype=torch.int64))
    state.declare("overflow", torch.zeros(GROUPS, count, dtype=torch.int64))
    state.declare("kurtosis", torch.zeros(GROUPS, count, dtype=torch.float64))
    state.declare("energy", torch.zeros(GROUPS, count, dtype=torch.float64))
    state.declare(
        "replicates", torch.zeros(context.replicates, 2, GROUPS, count, dtype=torch.float64)
    )
    state.declare("features", torch.zeros(GROUPS, count, width, dtype=torch.float64))
    state.declare("hits", torch.zeros(2, GROUPS, inputs, width, dtype=torch.int64))
    declare_magnitudes(state, points, width, context.sequences.ids.shape[1])
    state.declare("turned", torch.tensor(-math.inf, dtype=torch.float64), Reduction.MAX)
    return state


def _reduce(point: Point, value: Tensor, batch: Batch, context: Context) -> Mapping[str, Tensor]:
    parameters = context.parameters
    of_point = views_at(context.lens, point.name, rotate=parameters.rotate)
    if not of_point:
        return {}
    # Some architectures flatten batch and position before the norm of the MLP.
    x = value.reshape(*batch.ids.shape, -1)
    x = x.to(torch.promote_types(value.dtype, torch.float32))
    finite = finite_tokens(x)
    if not finite.all():
        x = torch.where(finite[..., None], x, 0.0)
    groups = group_rows(batch, finite, x.dtype)
    kept: dict[str, Tensor] = {"finite": finite}
    for view in of_point:
        if view.missing:
            continue
        here = in_basis(view, x, context.lens, parameters.rotate_seed)
        found = moments(here, groups)
        kept[f"{view.basis}/tokens"] = found.tokens
        kept[f"{view.basis}/features"] = found.features
        if view.input is not None:
            kept[f"{view.basis}/hits"] = _hits(
                here, found.tokens[2].sqrt(), groups, parameters.threshold
            )
        if view.residual and view.basis is Basis.NATIVE:
            kept["raw"] = found.raw
            kept |= magnitude_reduction(
                here, batch, parameters.massive_threshold, parameters.massive_ratio
            )
    return kept


def _hits(
    x: Float[Tensor, "batch pos d"],
    rms: Float[Tensor, "batch pos"],
    groups: Float[Tensor, "2 token"],
    threshold: float,
) -> Float[Tensor, "2 2 d"]:
    """Tokens that reach the threshold: by criterion (absolute, relative), group, dimension."""
    magnitude = x.abs().flatten(0, 1)
    limits = (torch.full_like(rms, threshold), threshold * rms)
    reached = [(magnitude >= limit.flatten()[:, None]).to(x.dtype) for limit in limits]
    return torch.stack([groups @ hit for hit in reached])


def _update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    seen = views(context.lens, rotate=context.parameters.rotate)
    members = torch.stack([batch.first, batch.rest]).cpu()
    _add_moments(state, seen, batch, observed, members)
    _add_hits(state, seen, observed)
    native = [v.point for v in seen if v.residual and v.basis is Basis.NATIVE]
    add_magnitudes(state, native, batch, observed, members)
    if context.parameters.rotate:
        state.add("turned", _turned(seen, observed, batch, context))


def _add_moments(
    state: State,
    seen: tuple[View, ...],
    batch: Batch,
    observed: Observed,
    members: Bool[Tensor, "2 batch pos"],
) -> None:
    tokens: list[Tensor] = []
    features: list[Tensor] = []
    counted: list[Tensor] = []
    width = state.tensors["features"].shape[-1]
    for view in seen:
        kept = observed.reduced[view.point]
        finite = kept["finite"].cpu()
        if view.missing:
            tokens.append(torch.zeros(3, *finite.shape, dtype=torch.float64))
            features.append(torch.zeros(GROUPS, width, dtype=torch.float64))
            counted.append(torch.zeros_like(finite))
            continue
        tokens.append(kept[f"{view.basis}/tokens"].cpu().double())
        features.append(kept[f"{view.basis}/features"].cpu().double())
        counted.append(finite)
    variance, kurtosis, _ = torch.stack(tokens, 1)  # [view batch pos]
    usable = torch.stack(counted) & members[:, None]  # [group view batch pos]
    defined = usable & kurtosis.isfinite()
    state.add("n", usable.sum((-1, -2)))
    state.add("n_kurtosis", defined.sum((-1, -2)))
    lost = torch.stack([observed.reduced[v.point]["finite"].cpu() for v in seen])
    state.add("overflow", (~lost & members[:, None]).sum((-1, -2)))
    state.add("energy", torch.where(usable, variance, 0.0).sum((-1, -2)) * width)
    state.add("features", torch.stack(features, 1))
    per_sequence = torch.stack(
        [defined.sum(-1).double(), torch.where(defined, kurtosis, 0.0).sum(-1)]
    )  # [2 group view batch]
    state.add("kurtosis", per_sequence[1].sum(-1))
    replicates = batch.weights @ per_sequence.flatten(0, 2).T
    state.add("replicates", replicates.unflatten(1, (2, GROUPS, -1)))


def _add_hits(state: State, seen: tuple[View, ...], observed: Observed) -> None:
    hits = torch.zeros_like(state.tensors["hits"])
    inputs = [view for view in seen if view.input is not None]
    for i, view in enumerate(inputs):
        if not view.missing:
            found = observed.reduced[view.point][f"{view.basis}/hits"]
            hits[:, :, i] = found.round().cpu().long()
    state.add("hits", hits)


def _turned(
    seen: tuple[View, ...], observed: Observed, batch: Batch, context: Context
) -> Float[Tensor, ""]:
    """Largest relative change of a token's sum of squares by the rotation."""
    worst = torch.tensor(-math.inf, dtype=torch.float64)
    for view in seen:
        if view.basis is not Basis.ROTATED or view.missing:
            continue
        kept = observed.reduced[view.point]
        after = kept["rotated/tokens"][2].cpu().double()
        before = _before_turning(view, kept, context).cpu().double()
        counted = batch.mask.cpu() & kept["finite"].cpu() & (before > 0)
        change = ((after - before).abs() / before)[counted]
        if len(change):
            worst = torch.maximum(worst, change.max())
    return worst


def _before_turning(view: View, kept: Mapping[str, Tensor], context: Context) -> Tensor:
    if not view.residual:
        return kept["gain_free/tokens"][2]
    centred = centres_residual(context.lens)
    return kept["native/tokens"][0 if centred else 2]


def _finish(state: State, context: Context) -> Finding:
    return summarise(state, context)


KERNEL = Streaming(init=_init, update=_update, finish=_finish, reduce=_reduce)
"""What the runner looks up."""

NEEDS = frozenset({Need.RESIDUAL, Need.NORM_OUTPUT})
"""What a pass must observe for it."""
