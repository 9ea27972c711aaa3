"""Verification of every site at opening: is the spec what the module computes?

1. One forward of a fixed sample of tokens, input and output of every norm captured, each
   norm required to run exactly once; the order of execution is that of the captures.
2. For each candidate spec of a norm its output is recomputed from its captured input in
   float64; ``residual = max|y - y_spec| / max|y|``.
3. The first candidate within tolerance is the site's spec. If none is, the site is OPAQUE:
   known by its input and output alone.

Implementations differ in where they round in half precision: Llama's casts xhat before the
gain, Gemma's after, Nemotron's rounds ``weight + 1``. Each is one or two roundings of half
a unit in the last place (2e-3 in bfloat16), so one tolerance holds for all of them.
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
from normlens.errors import CorruptModel, VerificationError
from normlens.hooks import Hook, hooked
from normlens.models.context import model_context_length
from normlens.models.detect import candidate_specs
from normlens.models.layout import layout_shape
from normlens.models.lens import Layout, NormSite, SiteCheck
from normlens.models.norm_classes import NO_CLASSES, NormClasses
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
    positions = min(SAMPLE_POSITIONS, model_context_length(model))
    ids = torch.arange(SAMPLE_SEQUENCES * positions, device=embedding.device) * 7919
    return (ids % embedding.shape[0]).reshape(SAMPLE_SEQUENCES, positions)


def verify(
    model: PreTrainedModel, places: Sequence[Place], classes: NormClasses = NO_CLASSES
) -> tuple[tuple[NormSite, ...], tuple[SiteCheck, ...]]:
    """Sites with verified specs and their checks, both in order of execution.

    Args:
        model: in eval mode.
        places: its norms.
        classes: a user's own norm classes.

    Raises:
        CorruptModel: a norm or what the model returns is not finite on the sample.
        HookMismatch: a norm does not run exactly once per forward.
        VerificationError: a norm's input has other axes than the family's row says.
    """
    capture = _Capture()
    hooks = [hook for place in places for hook in capture.hooks(place)]
    with torch.inference_mode(), hooked(model, hooks):
        ids = sample_tokens(model)
        # The first output is the logits, or the last hidden states of a bare encoder.
        output = model(input_ids=ids, use_cache=False, return_dict=True)[0]
    by_path = {place.path: place for place in places}
    sites: list[NormSite] = []
    checks: list[SiteCheck] = []
    for order, (path, x) in enumerate(capture.inputs.items()):
        place, y = by_path[path], capture.outputs[path]
        _require_finite(x, f"the input of norm {place.label} ({path})")
        _require_finite(y, f"the output of norm {place.label} ({path})")
        heads = _heads(place, x, ids.shape[0], ids.shape[1])
        spec, check = _verified_spec(place, x, y, classes)
        sites.append(
            NormSite(
                place.layer,
                place.role,
                order,
                path,
                place.feeds,
                spec,
                place.layout,
                heads,
                place.on_stream,
            )
        )
        checks.append(check)
    _require_finite(output, "the logits" if model.get_output_embeddings() else "the output")
    return tuple(sites), tuple(checks)


def residual(spec: NormSpec, place: Place, x: Tensor, y: Tensor) -> float:
    """``max|y - y_spec| / max|y|`` in float64; NaN for OPAQUE, which predicts nothing."""
    if spec.kind is NormKind.OPAQUE:
        return math.nan
    gamma, beta = (_aligned(p, place) for p in module_gain_and_bias(place.module, spec))
    y = y.double()
    difference = (y - apply_norm(spec, x, gamma, beta).y).abs().max().item()
    return difference / max(y.abs().max().item(), torch.finfo(torch.float64).tiny)


def _aligned(parameter: Tensor | None, place: Place) -> Tensor | None:
    """A gain or bias ``[head width]`` as it broadcasts against the norm's input."""
    if parameter is None or parameter.ndim == 1:
        return parameter
    return parameter.unsqueeze(1) if place.layout is Layout.BATCH_HEAD_POS else parameter


def _heads(place: Place, x: Tensor, batch: int, pos: int) -> int:
    axes = place.layout.strip("()").split() if place.layout.per_head else []
    heads = x.shape[axes.index("head")] if axes and x.ndim == len(axes) + 1 else 1
    wanted = layout_shape(place.layout, heads, batch, pos)
    if x.shape[:-1] != wanted:
        raise VerificationError(
            f"norm {place.label} ({place.path}) got an input of shape {tuple(x.shape)} for "
            f"{batch} sequences of {pos} tokens; its axes should be '{place.layout.value} "
            "width', so its numbers could not be put where they belong"
        )
    return heads


def _verified_spec(
    place: Place, x: Tensor, y: Tensor, classes: NormClasses
) -> tuple[NormSpec, SiteCheck]:
    checks: list[SiteCheck] = []
    variance = _largest_mean_square(x)
    for spec in candidate_specs(place.module, x.shape[-1], variance, classes):
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
