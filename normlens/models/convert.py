"""Between the two storage forms of a fixed-scale norm; both directions are exact.

eps-encoded (the public LN-free format): a LayerNorm with ``eps = 1e12`` and
``weight = gamma * 1e6 / scale``. Clean: a :class:`FixedScale` module.

    sqrt(var + 1e12) = 1e6 (1 + var / 2e12),   so   LN(x) = (x - mean(x)) / 1e6 * weight + bias

up to a relative ``var / 2e12``. Source: 2507.02559 and its published checkpoints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from normlens.errors import NotApplicable
from normlens.models.build import build_lens
from normlens.models.copying import structural_copy
from normlens.models.families import family_of
from normlens.models.lens import Lens, NormSite
from normlens.models.norm_classes import NO_CLASSES, NormClasses
from normlens.models.parameters import gain_and_bias
from normlens.norms import FixedScale, NormKind

ENCODED_EPS = 1e12


def has_eps_encoded(lens: Lens) -> bool:
    """Whether any norm of the model is stored in the eps-encoded form."""
    return any(site.spec.eps_encoded for site in lens.sites)


def convert_eps_encoded(lens: Lens, norm_classes: NormClasses = NO_CLASSES) -> Lens:
    """A lens with a FixedScale in place of every eps-encoded norm.

    ``scale = 1`` and ``weight = stored weight / sqrt(eps)``: the format keeps only the
    quotient of gain and scale. Other tensors are shared with ``lens``, which is unchanged.

    Args:
        lens: a model with eps-encoded norms.
        norm_classes: as given to :func:`~normlens.models.open_model`.

    Raises:
        NotApplicable: no norm is eps-encoded.
    """
    encoded = [site for site in lens.sites if site.spec.eps_encoded]
    if not encoded:
        raise NotApplicable(f"{lens.identity.name} has no eps-encoded norm to convert")
    model = structural_copy(lens.model)
    for site in encoded:
        gamma, beta = gain_and_bias(lens, site)
        scale = site.spec.fixed_scale or 1.0
        slope = torch.ones(site.spec.width).double() if gamma is None else gamma
        new = FixedScale(site.spec.width, centred=site.spec.centred, bias=beta is not None)
        _install(model, site, new, slope / scale, beta)
    return _rebuilt(lens, model, "convert_eps_encoded", norm_classes)


def encode_eps(lens: Lens) -> Lens:
    """The inverse: a LayerNorm with eps 1e12 in place of every FixedScale.

    ``weight = gamma * 1e6 / scale``; the config's eps follows, so that saving the model
    gives a checkpoint in the public format.

    Raises:
        NotApplicable: some norm is not a centred FixedScale with a bias, or the model is
            in float16, which the gains overflow.
    """
    for site in lens.sites:
        spec = site.spec
        if spec.kind is not NormKind.FIXED_SCALE or not (spec.centred and spec.bias):
            raise NotApplicable(
                f"norm {site.label} of {lens.identity.name} is {spec.kind.value}; only models "
                "whose norms are all centred fixed-scale ones with a bias have this form"
            )
    if lens.placement.dtype == "float16":
        raise NotApplicable("gains of about 1e6/scale overflow float16; open the model in float32")
    field = family_of(lens.model).eps_field
    if field is None:
        raise NotApplicable(
            f"the config of {lens.identity.name} has no eps, so the form could not be saved"
        )
    model = structural_copy(lens.model)
    for site in lens.sites:
        if site.spec.eps_encoded:
            continue
        gamma, beta = gain_and_bias(lens, site)
        assert gamma is not None and site.spec.fixed_scale is not None
        slope = gamma * (ENCODED_EPS**0.5 / site.spec.fixed_scale)
        _install(model, site, nn.LayerNorm(site.spec.width, eps=ENCODED_EPS), slope, beta)
    setattr(model.config, field, ENCODED_EPS)
    return _rebuilt(lens, model, "encode_eps")


def _install(
    model: PreTrainedModel, site: NormSite, new: nn.Module, gain: Tensor, bias: Tensor | None
) -> None:
    old = model.get_submodule(site.path)
    reference = next(old.parameters(), next(model.parameters()))
    new.to(reference.device, reference.dtype)
    new.get_parameter("weight").data.copy_(gain)
    if bias is not None:
        new.get_parameter("bias").data.copy_(bias)
    model.set_submodule(site.path, new)


def _rebuilt(
    lens: Lens, model: PreTrainedModel, edit: str, norm_classes: NormClasses = NO_CLASSES
) -> Lens:
    edits = (*lens.edits, edit)
    return build_lens(model, lens.tokenizer, lens.identity, lens.lineage, edits, norm_classes)
