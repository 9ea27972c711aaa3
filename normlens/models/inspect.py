"""The sites of a lens as a table, one row per norm in order of execution."""

from __future__ import annotations

import math

import pandas as pd

from normlens.models.lens import Lens, NormSite, SiteCheck
from normlens.models.parameters import gain_and_bias


def site_table(lens: Lens) -> pd.DataFrame:
    """What ``normlens inspect`` prints.

    Columns: ``label``, ``layer`` (NA outside blocks), ``role``, ``kind``, ``eps``,
    ``width``, ``gain_min``, ``gain_median``, ``gain_max`` (of the effective gain),
    ``bias_rms``, ``fixed_scale`` (units of the residual stream), ``eps_encoded``,
    ``residual`` and ``tolerance`` (relative), ``verified``, ``feeds``, ``path``. NaN where
    the norm has no such thing.
    """
    rows = [
        _row(lens, site, check) for site, check in zip(lens.sites, lens.verification, strict=True)
    ]
    return pd.DataFrame(rows).astype({"layer": "Int64"})


def _row(lens: Lens, site: NormSite, check: SiteCheck) -> dict[str, object]:
    gamma, beta = gain_and_bias(lens, site)
    spec = site.spec
    return {
        "label": site.label,
        "layer": site.layer,
        "role": site.role.value,
        "kind": spec.kind.value,
        "eps": math.nan if spec.eps is None else spec.eps,
        "width": spec.width,
        "gain_min": math.nan if gamma is None else gamma.min().item(),
        "gain_median": math.nan if gamma is None else gamma.median().item(),
        "gain_max": math.nan if gamma is None else gamma.max().item(),
        "bias_rms": math.nan if beta is None else beta.square().mean().sqrt().item(),
        "fixed_scale": math.nan if spec.fixed_scale is None else spec.fixed_scale,
        "eps_encoded": spec.eps_encoded,
        "residual": check.residual,
        "tolerance": check.tolerance,
        "verified": check.passed,
        "feeds": " ".join(site.feeds),
        "path": site.path,
    }
