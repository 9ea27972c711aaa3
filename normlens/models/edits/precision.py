"""The coarsest dtype that a model computes in, which bounds how exact an edit can be."""

from __future__ import annotations

from normlens.models.lens import Lens


def coarsest(*lenses: Lens) -> str:
    """``float32`` for a float64 model with norms that compute in float32, else its dtype."""
    dtype = lenses[0].placement.dtype
    specs = [site.spec for lens in lenses for site in lens.sites]
    inside = any(spec.compute_dtype == "float32" for spec in specs)
    return "float32" if dtype == "float64" and inside else dtype
