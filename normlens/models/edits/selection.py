"""Choosing norms by a short text: ``all``, ``pre_mlp``, ``3.pre_attn``, ``0-5``, ``final``.

    SITES = TERM[,TERM...]       TERM = all | ROLE | LAYERS | LAYERS.ROLE
    LAYERS = N | N-M             ROLE = pre_attn, pre_mlp, final, ...

Layers count from 0 and both ends of a range belong to it; the label of a site
(``3.pre_attn``) is one term. The chosen sites are those that any term names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from normlens.errors import UsageError
from normlens.models.lens import Lens, NormSite, Role

ALL = "all"
_TERM = re.compile(r"(?:(\d+)(?:-(\d+))?)?(?:(?:^|\.)([a-z_]+))?")


@dataclass(frozen=True)
class _Term:
    first: int | None
    last: int | None
    role: str | None

    def names(self, site: NormSite) -> bool:
        if self.role not in (None, ALL, site.role.value):
            return False
        if self.first is None or self.last is None:
            return True
        return site.layer is not None and self.first <= site.layer <= self.last


def select_sites(lens: Lens, text: str = ALL) -> tuple[NormSite, ...]:
    """The norms that ``text`` names, in order of execution.

    Raises:
        UsageError: a term cannot be read, or names no norm of this model.
    """
    chosen: set[str] = set()
    for part in text.split(","):
        term = _parse(part.strip())
        found = {site.path for site in lens.sites if term.names(site)}
        if not found:
            labels = ", ".join(dict.fromkeys(site.role.value for site in lens.sites))
            layers = max((s.layer for s in lens.sites if s.layer is not None), default=-1) + 1
            raise UsageError(
                f"{part.strip()!r} names no norm of {lens.identity.name}; it has the roles "
                f"{labels} in {layers} layers"
            )
        chosen |= found
    return tuple(site for site in lens.sites if site.path in chosen)


def _parse(text: str) -> _Term:
    match = _TERM.fullmatch(text)
    known = {ALL, *(role.value for role in Role)}
    if not text or match is None or (match[3] is not None and match[3] not in known):
        raise UsageError(
            f"cannot read {text!r} as norms; write all, a role (pre_mlp), layers (0-5), both "
            "(0-5.pre_mlp) or a label (3.pre_attn), several with commas"
        )
    first = None if match[1] is None else int(match[1])
    return _Term(first, first if match[2] is None else int(match[2]), match[3])
