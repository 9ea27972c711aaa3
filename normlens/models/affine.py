"""Gain and bias of a norm with its constant output factor in them."""

from __future__ import annotations

import torch

from normlens.models.lens import Lens, NormSite
from normlens.models.parameters import Gain, gain_and_bias


def site_affine(lens: Lens, site: NormSite) -> tuple[Gain, Gain]:
    """``(gamma, beta)`` such that ``y = xhat * gamma + beta`` is all of the norm's output.

    As :func:`~normlens.models.parameters.gain_and_bias`, times the factor of LayerNorm
    Scaling (2502.05795, eq. 3), which a norm without a gain has as its gain.
    """
    gamma, beta = gain_and_bias(lens, site)
    factor = site.spec.factor
    if factor == 1.0:
        return gamma, beta
    if gamma is None:
        gamma = torch.ones(site.spec.width, dtype=torch.float64, device=lens.model.device)
    return gamma * factor, None if beta is None else beta * factor
