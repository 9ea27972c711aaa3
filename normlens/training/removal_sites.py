"""Which norms of a model can lose their scale, and which switches each of them has.

1. Sites, kinds and constants are those that inspection finds and verifies; a norm is known by
   its role and by the linears it feeds, never by its name.
2. A norm before attention has a switch for q and k and one for v, and in a parallel block one
   for the MLP; all share one constant. They are apart where its readers are plain linears, or
   one fused linear whose order of outputs the family's row gives; otherwise the norm has one
   switch, thrown in the v phase.
3. What cannot be done is refused here, before anything is changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from normlens.errors import NotApplicable
from normlens.models.detect import has_huge_eps
from normlens.models.families import Family, family_of
from normlens.models.lens import NormSite, Role
from normlens.models.norm_classes import norm_parts
from normlens.models.sites import find_places
from normlens.models.verify import verify
from normlens.norms import NormKind
from normlens.training.schedule import PhaseName, Switch

PHASES: dict[Role, PhaseName] = {
    Role.PRE_MLP: "mlp",
    Role.PRE_ATTN: "v",
    Role.Q: "qk_norm",
    Role.K: "qk_norm",
    Role.V: "v",
    Role.POST_ATTN: "post",
    Role.POST_MLP: "post",
    Role.EXIT_ATTN: "post",
    Role.EXIT_MLP: "post",
    Role.EMBED: "embed",
    Role.FINAL: "final",
}
"""The phase of a norm with one switch, by its role; every other role is in ``other``."""


@dataclass(frozen=True)
class RemovalSite:
    """One norm whose scale is to be frozen.

    Attributes:
        site: where it is and what it computes.
        switches: one for each view of its output, in the order of the views.
        readers: linears that must read a view of their own: path and index of the view; the
            fused projection stands with the view for q and k.
        fused: path of the fused q,k,v projection among them, None without one.
        why_whole: why q, k and v are frozen together, empty where they are apart.
    """

    site: NormSite
    switches: tuple[Switch, ...]
    readers: tuple[tuple[str, int], ...] = ()
    fused: str | None = None
    why_whole: str = ""


def removal_sites(model: PreTrainedModel) -> tuple[RemovalSite, ...]:
    """Every norm of ``model`` with a live scale, in order of execution.

    Norms without a scale (Identity, DyT) stay as they are. The model runs once on a fixed
    sample of tokens.

    Raises:
        NotApplicable: a scale cannot be frozen, or there is none; says why.
        LoadError: the architecture is not supported.
    """
    family = family_of(model)
    if not family.causal:
        raise NotApplicable(
            f"norm removal trains causal language models, and {type(model).__name__} is an encoder"
        )
    if model.config.to_dict().get("add_cross_attention"):
        raise NotApplicable(
            "norm removal handles decoders, and this model has cross-attention norms; "
            "use a model without add_cross_attention"
        )
    sites, _ = verify(model, find_places(model, family))
    for site in sites:
        _refuse(model, site)
    found = tuple(_switched(model, family, site) for site in sites if site.spec.kind.has_live_scale)
    if not found:
        raise NotApplicable(
            f"no norm of this {type(model).__name__} divides by a live scale; "
            "start from a model with LayerNorm or RMSNorm"
        )
    return found


def removal_switches(model: PreTrainedModel) -> tuple[Switch, ...]:
    """Every scale that a removal freezes one by one; see :func:`removal_sites`."""
    return tuple(switch for found in removal_sites(model) for switch in found.switches)


def whole_norms(sites: tuple[RemovalSite, ...]) -> str:
    """One line on the norms whose q, k and v are frozen at once; empty without any."""
    whole = [found for found in sites if found.why_whole]
    if not whole:
        return ""
    return f"q, k and v of {len(whole)} norms are frozen at once: {whole[0].why_whole}"


def _refuse(model: PreTrainedModel, site: NormSite) -> None:
    kind, where = site.spec.kind, f"{site.label} ({site.path})"
    if kind is NormKind.FIXED_SCALE or has_huge_eps(site.spec):
        raise NotApplicable(
            f"the scale of {site.path} is a constant already; start from the model with live norms"
        )
    if kind is NormKind.OPAQUE:
        raise NotApplicable(
            f"what norm {where} computes is not known, so its scale cannot be frozen"
        )
    if kind.has_live_scale and not kind.eps_under_root:
        raise NotApplicable(
            f"norm {where} is of kind {kind.value}; the recipe freezes the scales of LayerNorm "
            "and RMSNorm, so convert the norm first"
        )
    if len(norm_parts(model.get_submodule(site.path))) > 1:
        raise NotApplicable(
            f"norm {where} is a module per head, for which there is no fixed-scale form; "
            "use a model without qk_layernorm"
        )


def _switched(model: PreTrainedModel, family: Family, site: NormSite) -> RemovalSite:
    if site.role is not Role.PRE_ATTN:
        phase = PHASES.get(site.role, "other")
        return RemovalSite(site, (Switch(phase, site.layer, site.label),))
    prefix = f"{family.blocks}.{site.layer}."
    qkv = tuple(prefix + name for name in family.qkv)
    why = _why_whole(model, family, site, qkv)
    if why:
        label = f"{site.label} q,k,v"
        return RemovalSite(site, (Switch("v", site.layer, label),), why_whole=why)
    others = tuple(path for path in site.feeds if path not in qkv)
    names: tuple[tuple[PhaseName, str], ...] = (("qk", "q,k"), ("v", "v"))
    if others:
        names = (("mlp", "mlp"), *names)
    switches = tuple(Switch(p, site.layer, f"{site.label} {name}") for p, name in names)
    qk = len(names) - 2
    if len(qkv) == 1:
        readers, fused = ((qkv[0], qk),), qkv[0]
    else:
        readers, fused = ((qkv[0], qk), (qkv[1], qk), (qkv[2], qk + 1)), None
    return RemovalSite(site, switches, (*((path, 0) for path in others), *readers), fused)


def _why_whole(model: PreTrainedModel, family: Family, site: NormSite, qkv: tuple[str, ...]) -> str:
    if site.on_stream:
        return f"the output of {site.path} becomes the residual stream"
    missing = [path for path in qkv if path not in site.feeds]
    if missing:
        return f"{site.path} does not feed {missing[0]}"
    if len(qkv) == 1 and family.fused_qkv is None:
        return f"the order of the outputs of {qkv[0]} is not known"
    for path in site.feeds:
        module = model.get_submodule(path)
        plain = isinstance(module, nn.Linear) and not is_parametrized(module)
        if not plain and not (isinstance(module, Conv1D) and path in qkv):
            return f"{path} is a {type(module).__name__}, not a plain linear"
    return ""
