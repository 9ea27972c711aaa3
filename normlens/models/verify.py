"""Verification of every site at opening: is the spec what the module computes?

1. One forward of a fixed sample of tokens, input and output of every norm captured, each
   norm required to run exactly once; the order of execution is that of the captures.
2. For each candidate spec of a norm its output is recomputed from its captured input in
   float64; ``residual = max|y - y_spec| / max|y|``.
3. The first candidate within tolerance is the site's spec. If none is, the site is OPAQUE:
   known by its input and output alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from normlens import tolerances
from normlens.errors import CorruptModel
from normlens.hooks import Hook, hooked
from normlens.models.detect import candidate_specs
from normlens.models.lens import NormSite, SiteCheck
from normlens.models.parameters import module_gain_and_bias
from normlens.models.sites import Place
from normlens.norms import NormKind, NormSpec, apply_norm

SAMPLE_SEQUENCES = 2
SAMPLE_POSITIONS = 16


@dataclass
class _Capture:
    """Input and output of the norms during one forward, keyed by path in order of execution."""

    inputs: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    outputs: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def hooks(self, place: Place) -> list[Hook]:
        def before(x: Tensor) -> None:
            self.inputs[place.path] = x.detach().clone()

        def after(y: Tensor) -> None:
            self.outputs[place.path] = y.detach().clone()

        return [
            Hook(place.module, "input", before, place.path),
            Hook(place.module, "output", after, place.path),
        ]


def sample_tokens(model: PreTrainedModel) -> Int[Tensor, "batch pos"]:
    """Two fixed sequences of spread-out token ids, the same for every model of a size."""
    embedding = model.get_input_embeddings().get_parameter("weight")
    positions = min(SAMPLE_POSITIONS, model.config.max_position_embeddings)
    ids = torch.arange(SAMPLE_SEQUENCES * positions, device=embedding.device) * 7919
    return (ids % embedding.shape[0]).reshape(SAMPLE_SEQUENCES, positions)


def verify(
    model: PreTrainedModel, places: Sequence[Place]
) -> tuple[tuple[NormSite, ...], tuple[SiteCheck, ...]]:
    """Sites with verified specs and their checks, both in order of execution.

    Raises:
        CorruptModel: a norm or the logits are not finite on the sample.
        HookMismatch: a norm does not run exactly once per forward.
    """
    capture = _Capture()
    hooks = [hook for place in places for hook in capture.hooks(place)]
    with torch.inference_mode(), hooked(model, hooks):
        logits = model(input_ids=sample_tokens(model), use_cache=False).logits
    by_path = {place.path: place for place in places}
    sites: list[NormSite] = []
    checks: list[SiteCheck] = []
    for order, (path, x) in enumerate(capture.inputs.items()):
        place, y = by_path[path], capture.outputs[path]
        _require_finite(x, f"the input of norm {place.label} ({path})")
        _require_finite(y, f"the output of norm {place.label} ({path})")
        spec, check = _verified_spec(place, x, y)
        sites.append(NormSite(place.layer, place.role, order, path, place.feeds, spec))
        checks.append(check)
    _require_finite(logits, "the logits")
    return tuple(sites), tuple(checks)


def residual(spec: NormSpec, place: Place, x: Tensor, y: Tensor) -> float:
    """``max|y - y_spec| / max|y|`` in float64; NaN for OPAQUE, which predicts nothing."""
    if spec.kind is NormKind.OPAQUE:
        return math.nan
    gamma, beta = module_gain_and_bias(place.module, spec)
    y = y.double()
    difference = (y - apply_norm(spec, x, gamma, beta).y).abs().max().item()
    return difference / max(y.abs().max().item(), torch.finfo(torch.float64).tiny)


def _verified_spec(place: Place, x: Tensor, y: Tensor) -> tuple[NormSpec, SiteCheck]:
    checks: list[SiteCheck] = []
    variance = _largest_mean_square(x)
    for spec in candidate_specs(place.module, x.shape[-1], variance):
        value = residual(spec, place, x, y)
        tolerance = tolerances.for_dtype("site_residual", _precision(spec, y.dtype))
        if spec.eps_encoded and spec.eps:
            # sqrt(variance + eps) is not quite sqrt(eps): the format's own error, known exactly.
            tolerance += variance / (2 * spec.eps)
        checks.append(SiteCheck(place.label, value, tolerance, value <= tolerance))
        if checks[-1].passed:
            return spec, checks[-1]
    return NormSpec(NormKind.OPAQUE, x.shape[-1]), checks[0]


def _largest_mean_square(x: Tensor) -> float:
    """Bounds the variance of a centred norm and is that of an uncentred one."""
    return x.double().square().mean(-1).max().item()


def _precision(spec: NormSpec, dtype: torch.dtype) -> str:
    """The coarser of the dtype of the output and that the norm computes in."""
    output = str(dtype).removeprefix("torch.")
    coarser = output == "float64" and spec.compute_dtype == "float32"
    return "float32" if coarser else output


def _require_finite(value: Tensor, what: str) -> None:
    if not value.isfinite().all():
        dtype = str(value.dtype).removeprefix("torch.")
        raise CorruptModel(
            f"{what} holds NaN or infinity on a sample of tokens in {dtype}; "
            "the weights are damaged or overflow that dtype (try float32)"
        )
