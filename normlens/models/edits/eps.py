"""Between the two storage forms of a fixed-scale norm; both directions are exact.

eps-encoded (the public LN-free format): a LayerNorm with ``eps = 1e12`` and
``weight = gamma * 1e6 / scale``. Clean: a :class:`~normlens.norms.FixedScale` module.

    sqrt(var + 1e12) = 1e6 (1 + var / 2e12),   so   LN(x) = (x - mean(x)) / 1e6 * weight + bias

up to a relative ``var / 2e12``. Either form is folded away by
:func:`~normlens.models.edits.fold.fold`. Source: 2507.02559 and its published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from normlens.errors import NotApplicable
from normlens.models.copying import structural_copy
from normlens.models.edits.conversion import convert
from normlens.models.edits.edit import Edited
from normlens.models.edits.install import install_norm, one_slope_and_bias
from normlens.models.families import family_of
from normlens.models.lens import Lens
from normlens.models.norm_classes import NO_CLASSES, NormClasses
from normlens.norms import NormKind, NormSpec

ENCODED_EPS = 1e12


@dataclass(frozen=True)
class DecodeEps:
    """See :func:`convert_eps_encoded`."""

    @property
    def name(self) -> str:
        """What ``lens.edits`` records."""
        return "convert_eps_encoded"

    @property
    def tolerance(self) -> str:
        """Exact: the row of the tolerance file."""
        return "eps_format_logits"

    def __call__(self, lens: Lens) -> Edited:
        """The model with clean modules."""
        encoded = [site for site in lens.sites if site.spec.eps_encoded]
        if not encoded:
            raise NotApplicable(f"{lens.identity.name} has no eps-encoded norm to convert")
        model = structural_copy(lens.model)
        for site in encoded:
            slope, beta = one_slope_and_bias(lens, site)
            spec = replace(
                site.spec,
                eps=None,
                eps_encoded=False,
                gain=True,
                fixed_scale=1.0,
                unit_offset=False,
                compute_dtype="input",
            )
            install_norm(model, site.path, spec, slope / (site.spec.fixed_scale or 1.0), beta)
        return Edited(model)


@dataclass(frozen=True)
class EncodeEps:
    """See :func:`encode_eps`."""

    @property
    def name(self) -> str:
        """What ``lens.edits`` records."""
        return "encode_eps"

    @property
    def tolerance(self) -> str:
        """Exact: the row of the tolerance file."""
        return "eps_format_logits"

    def __call__(self, lens: Lens) -> Edited:
        """The model in the public format."""
        name = lens.identity.name
        for site in lens.sites:
            spec = site.spec
            constant = spec.kind is NormKind.FIXED_SCALE and spec.fixed_scale is not None
            if not (constant and spec.centred and spec.bias):
                raise NotApplicable(
                    f"norm {site.label} of {name} is {spec.kind.value}; only models "
                    "whose norms are all centred fixed-scale ones with a bias have this form"
                )
        if lens.placement.dtype == "float16":
            raise NotApplicable(
                "gains of about 1e6/scale overflow float16; open the model in float32"
            )
        field = family_of(lens.model).eps_field
        if field is None:
            raise NotApplicable(f"the config of {name} has no eps, so the form could not be saved")
        model = structural_copy(lens.model)
        for site in lens.sites:
            if site.spec.eps_encoded:
                continue
            slope, beta = one_slope_and_bias(lens, site)
            spec = NormSpec(
                NormKind.LAYER_NORM,
                site.spec.width,
                eps=ENCODED_EPS,
                centred=True,
                gain=True,
                bias=True,
            )
            slope = slope * (ENCODED_EPS**0.5 / (site.spec.fixed_scale or 1.0))
            install_norm(model, site.path, spec, slope, beta)
        setattr(model.config, field, ENCODED_EPS)
        return Edited(model)


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
    return convert(lens, DecodeEps(), norm_classes=norm_classes).lens


def encode_eps(lens: Lens) -> Lens:
    """The inverse: a LayerNorm with eps 1e12 in place of every FixedScale.

    ``weight = gamma * 1e6 / scale``; the config's eps follows, so that saving the model
    gives a checkpoint in the public format.

    Raises:
        NotApplicable: some norm is not a centred FixedScale with one constant and a bias,
            or the model is in float16, which the gains overflow.
    """
    return convert(lens, EncodeEps()).lens
