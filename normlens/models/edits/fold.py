"""Folding: gain and bias of a norm move into the linears that read its output.

    W (xhat * gamma + beta) + b  =  (W diag(gamma)) xhat + (b + W beta)

A norm that is linear vanishes altogether, since centring too can be moved into a reader:
``W (x - mean(x)) = (W - rowmean(W)) x`` (a constant per position stays). A norm on the
embeddings of a model with a single table of them is a function of the token, so it is
evaluated once per row of the table.

Exact. Source: 2305.14858, section 3; TransformerLens's ``fold_ln``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import nn
from transformers import PreTrainedModel

from normlens.errors import NotApplicable
from normlens.models.copying import structural_copy
from normlens.models.edits.conversion import convert
from normlens.models.edits.edit import Edited
from normlens.models.edits.install import clear_affine, has_affine, install_norm
from normlens.models.edits.linears import (
    embedding_table,
    is_plain_linear,
    linear_weights,
    set_embedding_table,
    set_linear_weights,
)
from normlens.models.edits.selection import ALL, select_sites
from normlens.models.edits.untie import untie_in_place
from normlens.models.families import family_of
from normlens.models.lens import Lens, NormSite, Role
from normlens.models.parameters import gain_and_bias
from normlens.norms import NormKind, NormSpec, apply_norm


@dataclass(frozen=True)
class Fold:
    """See :func:`fold`."""

    sites: str = ALL

    @property
    def tolerance(self) -> str:
        """Exact: the row of the tolerance file."""
        return "conversion_logits"

    @property
    def name(self) -> str:
        """``fold``, with the sites where they are not all."""
        return "fold" if self.sites == ALL else f"fold@{self.sites}"

    def __call__(self, lens: Lens) -> Edited:
        """The folded model; its notes say what could not be folded."""
        sites = [s for s in select_sites(lens, self.sites) if needs_folding(lens, s)]
        if not sites:
            raise NotApplicable(f"no gain, bias or linear norm of {lens.identity.name} to fold")
        reasons = {site: why_not(lens, site) for site in sites}
        kept = {site: reason for site, reason in reasons.items() if reason is not None}
        if kept and (self.sites != ALL or len(kept) == len(sites)):
            site, reason = next(iter(kept.items()))
            raise NotApplicable(
                f"norm {site.label} of {lens.identity.name} is not folded: {reason}"
            )
        model = structural_copy(lens.model)
        fold_in_place(model, lens, (site for site in sites if site not in kept))
        return Edited(model, _notes(kept))


def fold(lens: Lens, sites: str = ALL) -> Lens:
    """A lens whose norms have neither gain nor bias, and whose linear norms are gone.

    Embeddings are untied where the final norm folds into them, and linears without a bias
    get one where the norm has one. Kinds are kept: what a live norm divides by is untouched.

    Args:
        lens: left as it is.
        sites: as :func:`~normlens.models.edits.selection.select_sites` reads them. With
            ``all``, norms that cannot be folded keep their gain and bias.

    Raises:
        NotApplicable: nothing can be folded, or a norm named on purpose cannot: its output
            is read by no linear (norms on queries, keys and branch outputs), is the
            residual stream itself (post-LN), or is opaque.
    """
    return convert(lens, Fold(sites)).lens


def needs_folding(lens: Lens, site: NormSite) -> bool:
    """Whether folding would change anything."""
    if site.spec.kind is NormKind.OPAQUE:
        return True
    if site.spec.kind is NormKind.IDENTITY:
        return False
    return vanishes(site.spec) or has_affine(lens, site) or site.spec.factor != 1


def vanishes(spec: NormSpec) -> bool:
    """Whether all of the norm can be moved into the linears that read it."""
    return spec.kind.linear and spec.position_scales is None


def why_not(lens: Lens, site: NormSite) -> str | None:
    """Why a norm cannot be folded; None where it can."""
    if site.spec.kind is NormKind.OPAQUE:
        return "it is opaque, so what it does with its gain is unknown"
    if site.on_stream:
        if site.role is Role.EMBED and _table_of(lens) is not None:
            return None
        return "its output becomes the residual stream, which more than linears read"
    if not site.feeds:
        if site.role in (Role.Q, Role.K):
            return "queries and keys are normalised after their projection; no linear reads them"
        return "no linear reads its output"
    for path in site.feeds:
        if not is_plain_linear(lens.model.get_submodule(path)):
            return f"{path} holds no plain weight"
    return None


def fold_in_place(model: PreTrainedModel, lens: Lens, sites: Iterable[NormSite]) -> None:
    """Fold norms for which :func:`why_not` is None into a structural copy of ``lens.model``."""
    for site in sites:
        if not needs_folding(lens, site):
            continue
        if site.on_stream:
            _into_table(model, lens, site)
            continue
        _untie_if_read(model, site)
        for path in site.feeds:
            _into_linear(model, lens, site, path)
        if vanishes(site.spec):
            _remove(model, site)
        elif site.spec.factor != 1:
            install_norm(model, site.path, plain(site.spec), None, None)
        else:
            clear_affine(model, site)


def plain(spec: NormSpec) -> NormSpec:
    """The spec without gain, bias and factor, in the dtype of its input."""
    return replace(
        spec, gain=False, bias=False, unit_offset=False, factor=1.0, compute_dtype="input"
    )


def _into_linear(model: PreTrainedModel, lens: Lens, site: NormSite, path: str) -> None:
    spec, (gamma, beta) = site.spec, gain_and_bias(lens, site)
    linear = model.get_submodule(path)
    weight, bias = linear_weights(linear, path)
    if beta is not None and beta.any():
        moved = weight @ (beta * spec.factor)
        bias = moved if bias is None else bias + moved
    weight = weight * (spec.factor if gamma is None else gamma * spec.factor)
    if vanishes(spec):
        weight = weight / (spec.fixed_scale or 1.0)
        if spec.centred:
            weight = weight - weight.mean(1, keepdim=True)
    set_linear_weights(linear, weight, bias)


def _into_table(model: PreTrainedModel, lens: Lens, site: NormSite) -> None:
    path = _table_of(lens)
    assert path is not None
    untie_in_place(model)
    module = model.get_submodule(path)
    table = apply_norm(site.spec, embedding_table(module, path), *gain_and_bias(lens, site)).y
    set_embedding_table(module, table)
    _remove(model, site)


def _table_of(lens: Lens) -> str | None:
    """Path of the model's only table of embeddings, if that is all its stream starts from."""
    paths = family_of(lens.model).embeddings
    only = len(paths) == 1 and type(lens.model.get_submodule(paths[0])) is nn.Embedding
    return paths[0] if only else None


def _untie_if_read(model: PreTrainedModel, site: NormSite) -> None:
    unembedding = model.get_output_embeddings()
    if any(model.get_submodule(path) is unembedding for path in site.feeds):
        untie_in_place(model)


def _remove(model: PreTrainedModel, site: NormSite) -> None:
    model.set_submodule(site.path, nn.Identity())


def _notes(kept: dict[NormSite, str]) -> tuple[str, ...]:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for site, reason in kept.items():
        by_reason.setdefault((site.role.value, reason), []).append(site.label)
    return tuple(
        f"{role} ({len(labels)} of them) kept: {reason}"
        for (role, reason), labels in by_reason.items()
    )
