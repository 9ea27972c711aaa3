"""Another norm in place of the one that is there, gain and bias kept.

Kinds that divide by the length of their input get a gain larger by ``sqrt(d)``, so that the
output keeps its size; ScaleNorm's single gain is the mean over elements.

Not an exact edit: the change of the logits is what it reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from normlens.errors import NotApplicable, UsageError
from normlens.models.copying import structural_copy
from normlens.models.edits.conversion import convert
from normlens.models.edits.edit import Edited
from normlens.models.edits.install import install_norm, one_slope_and_bias
from normlens.models.edits.selection import ALL, select_sites
from normlens.models.lens import Lens, NormSite
from normlens.norms import NormKind, NormSpec
from normlens.norms.fields import DEFAULT_ALPHA

BY_LENGTH = frozenset({NormKind.L2_NORM, NormKind.SCALE_NORM})
"""Kinds that divide by ``||x|| = sqrt(d) rms(x)``; their gain is multiplied by ``sqrt(d)``."""

WITHOUT_AFFINE = frozenset({NormKind.SIMPLE_RMS_NORM, NormKind.IDENTITY})


@dataclass(frozen=True)
class ReplaceNorms:
    """See :func:`replace_norms`; ``specs`` pairs labels with specs."""

    specs: tuple[tuple[str, NormSpec], ...]

    @property
    def tolerance(self) -> None:
        """None: not exact."""
        return None

    @property
    def name(self) -> str:
        """Every label and what replaces it."""
        return "replace=" + ",".join(f"{label}:{_shown(spec)}" for label, spec in self.specs)

    def __call__(self, lens: Lens) -> Edited:
        """The model with the new norms."""
        sites = {site.label: site for site in lens.sites}
        unknown = [label for label, _ in self.specs if label not in sites]
        if unknown:
            raise UsageError(f"{lens.identity.name} has no norm {unknown[0]}")
        return Edited(replaced(lens, {sites[label]: spec for label, spec in self.specs}))


@dataclass(frozen=True)
class SwapKind:
    """See :func:`swap_kind`."""

    kind: NormKind
    sites: str = ALL
    alpha: float = DEFAULT_ALPHA

    @property
    def tolerance(self) -> None:
        """None: not exact."""
        return None

    @property
    def name(self) -> str:
        """``kind=KIND@SITES``, with the slope of a kind that has one."""
        slope = f":{self.alpha:g}" if self.kind.has_alpha else ""
        return f"kind={self.kind.value}{slope}@{self.sites}"

    def __call__(self, lens: Lens) -> Edited:
        """The model with norms of that kind."""
        if reason := why_no_swap(self.kind):
            raise UsageError(f"no swap to {self.kind.value}: {reason}")
        sites = select_sites(lens, self.sites)
        return Edited(replaced(lens, {site: self._spec(lens, site) for site in sites}))

    def _spec(self, lens: Lens, site: NormSite) -> NormSpec:
        old = site.spec
        if old.kind is NormKind.OPAQUE:
            raise NotApplicable(
                f"norm {site.label} of {lens.identity.name} is opaque: its gain is not known"
            )
        fields: dict[str, object] = {"kind": self.kind.value}
        if self.kind not in WITHOUT_AFFINE:
            fields |= {"gain": old.gain or self.kind in BY_LENGTH, "bias": old.bias}
        if self.kind.eps_under_root and old.kind.eps_under_root:
            fields["eps"] = old.eps
        if self.kind is NormKind.L1_NORM:
            fields["centred"] = old.centred
        if self.kind.has_alpha:
            fields["alpha"] = self.alpha
        return NormSpec.of(fields, old.width)


def why_no_swap(kind: NormKind) -> str | None:
    """Why no norm can be swapped to a kind; None where it can."""
    if kind is NormKind.OPAQUE:
        return "that is a norm of which nothing is known"
    if kind is NormKind.FIXED_SCALE:
        return "it needs its constant; freeze the scale instead"
    if kind.batch_coupled:
        return "its statistics come from training"
    return None


def replace_norms(lens: Lens, specs: Mapping[str, NormSpec]) -> Lens:
    """A lens with norms of the given specs at the given labels, gain and bias kept.

    A spec without gain or bias drops it; one that has either where the old norm had none
    starts from 1 and 0.

    Raises:
        UsageError: no norm has that label.
        NotApplicable: every head of the norm has a gain of its own.
    """
    return convert(lens, ReplaceNorms(tuple(specs.items()))).lens


def swap_kind(
    lens: Lens, kind: NormKind, sites: str = ALL, *, alpha: float = DEFAULT_ALPHA
) -> Lens:
    """A lens with norms of another kind; eps, gain and bias are kept where the kind has them.

    Args:
        lens: left as it is.
        kind: any for which :func:`why_no_swap` is None.
        sites: as :func:`~normlens.models.edits.selection.select_sites` reads them.
        alpha: slope of kinds that have one (DyT).

    Raises:
        UsageError: the kind cannot be chosen, or the sites cannot be read.
        NotApplicable: a norm is opaque, or every head of it has a gain of its own.
    """
    return convert(lens, SwapKind(kind, sites, alpha)).lens


def replaced(lens: Lens, specs: Mapping[NormSite, NormSpec]) -> PreTrainedModel:
    """A structural copy with the norms of ``specs``."""
    model = structural_copy(lens.model)
    for site, spec in specs.items():
        slope, beta = one_slope_and_bias(lens, site)
        ratio = site.spec.factor / spec.factor
        slope = slope * ratio * _length(spec) / _length(site.spec)
        if spec.kind is NormKind.SCALE_NORM:
            slope = slope.mean()
        install_norm(
            model,
            site.path,
            replace(spec, unit_offset=False, compute_dtype="input"),
            slope if spec.gain else None,
            beta * ratio if spec.bias and beta is not None else None,
        )
    return model


def _length(spec: NormSpec) -> float:
    return spec.width**0.5 if spec.kind in BY_LENGTH else 1.0


def _shown(spec: NormSpec) -> str:
    default = NormSpec(spec.kind, spec.width)
    fields = {k: v for k, v in vars(spec).items() if v != vars(default)[k]}
    return f"{spec.kind.value}({','.join(f'{k}={v!r}' for k, v in fields.items())})"
