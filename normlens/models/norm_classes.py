"""Known norm classes of transformers, and a user's own: how each stores its constants.

Rows of data, by class name. They say what to try; :mod:`normlens.models.verify` decides
whether it is true of the module at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from normlens.norms import NormKind, NormSpec, ScaledNorm

NormClasses = Mapping[type[nn.Module], Callable[[nn.Module], NormSpec]]
"""A user's norm classes, each with a function that reads a module's spec.

Gain and bias, where the spec says they exist, are the parameters ``weight`` and ``bias``."""

NO_CLASSES: NormClasses = MappingProxyType({})


@dataclass(frozen=True)
class NormClass:
    """How a class stores and computes.

    Attributes:
        kind: LAYER_NORM or RMS_NORM.
        eps: attribute that holds eps, or its value where the code fixes it.
        unit_offset: whether the stored weight is ``gamma - 1``.
        compute_dtype: as in :class:`~normlens.norms.NormSpec`.
        per_head: attribute of the module list with one norm per head, where the class
            only hands out heads to those; eps, gain and bias are then theirs.
    """

    kind: NormKind
    eps: str | float = "variance_epsilon"
    unit_offset: bool = False
    compute_dtype: str = "float32"
    per_head: str | None = None


_RMS = NormClass(NormKind.RMS_NORM)
_RMS_FAMILIES = (
    "Llama",
    "Mistral",
    "Qwen2",
    "Qwen3",
    "Phi3",
    "Granite",
    "Olmo2",
    "Olmo3",
    "Glm4",
)
_GEMMA = NormClass(NormKind.RMS_NORM, eps="eps", unit_offset=True)
_COHERE = NormClass(NormKind.LAYER_NORM)

NORM_CLASSES: Mapping[str, NormClass] = MappingProxyType(
    {
        **{f"{family}RMSNorm": _RMS for family in _RMS_FAMILIES},
        **{f"{family}RMSNorm": _GEMMA for family in ("Gemma", "Gemma2", "Gemma3")},
        "CohereLayerNorm": _COHERE,
        "Cohere2LayerNorm": _COHERE,
        "OlmoLayerNorm": NormClass(NormKind.LAYER_NORM, eps=1e-5),
        "NemotronLayerNorm1P": NormClass(
            NormKind.LAYER_NORM, eps="eps", unit_offset=True, compute_dtype="input"
        ),
        "StableLmLayerNormPerHead": NormClass(
            NormKind.LAYER_NORM, eps="eps", compute_dtype="input", per_head="norms"
        ),
    }
)
"""Norm classes of transformers that are not torch's own, by class name."""


def known_class(module: nn.Module) -> NormClass | None:
    """The row for a module, None where its class has none."""
    return NORM_CLASSES.get(type(module).__name__)


def norm_parts(module: nn.Module) -> tuple[nn.Module, ...]:
    """The modules that hold a norm's parameters: itself, the one inside, or one per head."""
    if isinstance(module, ScaledNorm):
        return norm_parts(module.norm)
    known = known_class(module)
    if known is None or known.per_head is None:
        return (module,)
    return tuple(module.get_submodule(known.per_head).children())


def spec_of_class(module: nn.Module, known: NormClass, width: int) -> NormSpec:
    """What the row says of a module; OPAQUE where it does not normalise ``width`` elements."""
    parts = norm_parts(module)
    gain, bias = _parameter(parts[0], "weight"), _parameter(parts[0], "bias")
    eps = {getattr(p, known.eps) if isinstance(known.eps, str) else known.eps for p in parts}
    if _normalised_width(parts[0], gain) != width or len(eps) != 1:
        return NormSpec(NormKind.OPAQUE, width)
    return NormSpec(
        known.kind,
        width,
        eps=eps.pop(),
        centred=known.kind is NormKind.LAYER_NORM,
        unit_offset=known.unit_offset,
        gain=gain is not None,
        bias=bias is not None,
        compute_dtype=known.compute_dtype,
    )


def registered(module: nn.Module, classes: NormClasses) -> Callable[[nn.Module], NormSpec] | None:
    """What a user registered for the module's class or the nearest of its bases."""
    return next((classes[base] for base in type(module).__mro__ if base in classes), None)


def _parameter(module: nn.Module, name: str) -> torch.Tensor | None:
    return dict(module.named_parameters(recurse=False)).get(name)


def _normalised_width(module: nn.Module, gain: torch.Tensor | None) -> int:
    """Size of the normalised axis: the last of the gain, or as a norm without one says."""
    shape: Any = gain.shape if gain is not None else module.normalized_shape
    return int(shape[-1])
