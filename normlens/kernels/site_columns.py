"""The columns that name a norm site in a table."""

from __future__ import annotations

from normlens.models.lens import NormSite


def site_columns(site: NormSite) -> dict[str, object]:
    """Values of the columns ``site``, ``layer``, ``role``, ``order`` and ``kind``."""
    return {
        "site": site.label,
        "layer": site.layer,
        "role": site.role.value,
        "order": site.order,
        "kind": site.spec.kind.value,
    }
