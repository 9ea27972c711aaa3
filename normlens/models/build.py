"""From a loaded model to a verified Lens; every opener and every edit ends here."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from normlens.errors import CorruptModel, LoadError
from normlens.models.detect import has_huge_eps, live_spec
from normlens.models.families import family_of
from normlens.models.lens import Identity, Lens, Lineage, Placement
from normlens.models.norm_classes import NO_CLASSES, NormClasses, norm_parts, registered
from normlens.models.parameters import module_gain_and_bias
from normlens.models.sites import Place, find_places
from normlens.models.verify import verify
from normlens.norms import NormSpec

LARGEST_PLAUSIBLE_GAIN = 1e3
"""Median |gain| of a live norm with an ordinary eps; scale-free weights have about 1e5."""

LARGEST_ORDINARY_EPS = 1e-2

SMALLEST_PLAUSIBLE_SLOPE = 1e-5
"""Median |gain| over scale of a fixed-scale norm; a live norm's gains over 1e6 give 1e-6."""


def build_lens(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    identity: Identity,
    lineage: Lineage,
    edits: tuple[str, ...] = (),
    norm_classes: NormClasses = NO_CLASSES,
) -> Lens:
    """Find, check and verify the norms of ``model``, which the lens then owns.

    The model is put in eval mode, without gradients and with sdpa attention where its
    class has it.

    Args:
        model: a supported architecture.
        tokenizer: or None.
        identity: what was opened.
        lineage: what it was fine-tuned from.
        edits: what was done to it since.
        norm_classes: norm classes of one's own, each with a function that reads a
            module's spec; verification decides whether the spec is true.

    Raises:
        LoadError: unsupported architecture, or an eps-encoded model in float16.
        CorruptModel: parameters, norm outputs or logits are not finite, or gains and eps
            of a norm contradict each other.
        HookMismatch: a norm does not run exactly once per forward.
        VerificationError: a norm's input has other axes than the family's row says.
    """
    family = family_of(model)
    model.eval().requires_grad_(False)
    if model._supports_sdpa:
        model.set_attn_implementation("sdpa")
    places = find_places(model, family, norm_classes)
    for place in places:
        if registered(place.module, norm_classes) is None:
            _refuse_implausible(place)
    _refuse_not_finite(model)
    sites, verification = verify(model, places, norm_classes)
    placement = Placement(str(model.device), str(model.dtype).removeprefix("torch."))
    return Lens(model, tokenizer, sites, verification, identity, lineage, edits, placement)


def _refuse_implausible(place: Place) -> None:
    weight = dict(norm_parts(place.module)[0].named_parameters(recurse=False)).get("weight")
    if weight is None or weight.ndim == 0:
        return
    spec = live_spec(place.module, weight.shape[-1])
    if not spec.kind.eps_under_root:
        return
    if not has_huge_eps(spec):
        _refuse_huge_gain(place, spec)
        return
    if weight.dtype == torch.float16:
        raise LoadError(
            f"norm {place.label} stores its constant scale as eps {spec.eps:g} and a gain near "
            "1e6/scale, which overflows float16; open it in float32 or bfloat16, or with "
            "convert=True"
        )
    _refuse_tiny_slope(place, spec)


def _refuse_huge_gain(place: Place, spec: NormSpec) -> None:
    gain = _median_gain(place, spec)
    if gain > LARGEST_PLAUSIBLE_GAIN and (spec.eps or 0.0) <= LARGEST_ORDINARY_EPS:
        raise CorruptModel(
            f"norm {place.label} ({place.path}) has median |gain| {gain:.3g} with eps "
            f"{spec.eps:g}: these are scale-free weights (gain x 1e6/scale, eps 1e12) under a "
            "config with the base model's eps; use the config that was published with them"
        )


def _refuse_tiny_slope(place: Place, spec: NormSpec) -> None:
    slope = _median_gain(place, spec) / (spec.eps or 1.0) ** 0.5
    if slope < SMALLEST_PLAUSIBLE_SLOPE:
        raise CorruptModel(
            f"norm {place.label} ({place.path}) has eps {spec.eps:g} and ordinary gains, so it "
            f"multiplies its input by {slope:.1g}: these are weights of a live norm under the "
            "config of a scale-free one; use the config that was published with them"
        )


def _median_gain(place: Place, spec: NormSpec) -> float:
    gamma, _ = module_gain_and_bias(place.module, spec)
    return 1.0 if gamma is None else gamma.abs().median().item()


def _refuse_not_finite(model: PreTrainedModel) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            dtype = str(parameter.dtype).removeprefix("torch.")
            raise CorruptModel(
                f"tensor {name} holds NaN or infinity in {dtype}; the checkpoint is damaged or "
                "overflows that dtype (try float32)"
            )
