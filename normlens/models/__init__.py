"""Opening models, finding and verifying their norms; everything that knows architectures.

Public names are loaded on first use: listing the models needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normlens.models.build import build_lens
    from normlens.models.context import context_length
    from normlens.models.copying import structural_copy
    from normlens.models.edits import (
        Conversion,
        EditCheck,
        convert,
        convert_eps_encoded,
        encode_eps,
        fold,
        freeze_scale,
        has_eps_encoded,
        replace_norms,
        rotate,
        swap_kind,
        to_crms,
        to_rms,
        untie,
    )
    from normlens.models.families import Family, NormRule, family_of
    from normlens.models.inspect import site_table
    from normlens.models.layout import by_position, token_shape
    from normlens.models.lens import (
        Identity,
        Layout,
        Lens,
        Lineage,
        NormSite,
        Placement,
        Role,
        SiteCheck,
    )
    from normlens.models.lineage import related, weight_cosine
    from normlens.models.listing import ModelEntry, list_models
    from normlens.models.norm_classes import NormClasses
    from normlens.models.opening import open_model
    from normlens.models.parameters import gain_and_bias
    from normlens.models.tokenizers import tokenizer_of

__all__ = [
    "Conversion",
    "EditCheck",
    "Family",
    "Identity",
    "Layout",
    "Lens",
    "Lineage",
    "ModelEntry",
    "NormClasses",
    "NormRule",
    "NormSite",
    "Placement",
    "Role",
    "SiteCheck",
    "build_lens",
    "by_position",
    "context_length",
    "convert",
    "convert_eps_encoded",
    "encode_eps",
    "family_of",
    "fold",
    "freeze_scale",
    "gain_and_bias",
    "has_eps_encoded",
    "list_models",
    "open_model",
    "related",
    "replace_norms",
    "rotate",
    "site_table",
    "structural_copy",
    "swap_kind",
    "to_crms",
    "to_rms",
    "token_shape",
    "tokenizer_of",
    "untie",
    "weight_cosine",
]

_HOME = {
    "build": ("build_lens",),
    "context": ("context_length",),
    "copying": ("structural_copy",),
    "edits": (
        "Conversion",
        "EditCheck",
        "convert",
        "convert_eps_encoded",
        "encode_eps",
        "fold",
        "freeze_scale",
        "has_eps_encoded",
        "replace_norms",
        "rotate",
        "swap_kind",
        "to_crms",
        "to_rms",
        "untie",
    ),
    "families": ("Family", "NormRule", "family_of"),
    "inspect": ("site_table",),
    "layout": ("by_position", "token_shape"),
    "lens": ("Identity", "Layout", "Lens", "Lineage", "NormSite", "Placement", "Role", "SiteCheck"),
    "lineage": ("related", "weight_cosine"),
    "listing": ("ModelEntry", "list_models"),
    "norm_classes": ("NormClasses",),
    "opening": ("open_model",),
    "parameters": ("gain_and_bias",),
    "tokenizers": ("tokenizer_of",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
