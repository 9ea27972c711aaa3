"""Edits of a model's norms: each takes a Lens and gives a new one.

An edit copies the structure of the model, shares every tensor it does not change, ends in
the verification that opening ends in, and is recorded in ``lens.edits``. It runs both models
on a sample: an exact edit whose logits are not kept within the tolerance file is an error.

One file per edit. :class:`~normlens.models.edits.edit.Edit` is what they have in common, and
:func:`~normlens.models.edits.conversion.convert` applies several and reports what each did.
"""

from __future__ import annotations

from normlens.models.edits.conversion import Conversion, EditCheck, convert
from normlens.models.edits.crms import ToCrms, to_crms
from normlens.models.edits.edit import Edit, Edited
from normlens.models.edits.eps import (
    DecodeEps,
    EncodeEps,
    convert_eps_encoded,
    encode_eps,
    has_eps_encoded,
)
from normlens.models.edits.fold import Fold, fold
from normlens.models.edits.freeze import Freeze, freeze_scale
from normlens.models.edits.rms import ToRms, to_rms
from normlens.models.edits.rotate import Rotate, rotate
from normlens.models.edits.selection import select_sites
from normlens.models.edits.swap import ReplaceNorms, SwapKind, replace_norms, swap_kind
from normlens.models.edits.untie import Untie, untie

__all__ = [
    "Conversion",
    "DecodeEps",
    "Edit",
    "EditCheck",
    "Edited",
    "EncodeEps",
    "Fold",
    "Freeze",
    "ReplaceNorms",
    "Rotate",
    "SwapKind",
    "ToCrms",
    "ToRms",
    "Untie",
    "convert",
    "convert_eps_encoded",
    "encode_eps",
    "fold",
    "freeze_scale",
    "has_eps_encoded",
    "replace_norms",
    "rotate",
    "select_sites",
    "swap_kind",
    "to_crms",
    "to_rms",
    "untie",
]
