"""How long a sequence a model can read."""

from __future__ import annotations

from transformers import PreTrainedModel

from normlens.models.families import family_of
from normlens.models.lens import Lens

UNLIMITED = 2**31 - 1
"""Stands for a model in whose positions nothing ends (ALiBi); tokens."""


def context_length(lens: Lens) -> int:
    """Longest sequence the model's positions allow, in tokens; :data:`UNLIMITED` for ALiBi."""
    return model_context_length(lens.model)


def model_context_length(model: PreTrainedModel) -> int:
    """:func:`context_length` of a model that is not in a lens yet."""
    field = family_of(model).context
    return UNLIMITED if field is None else int(getattr(model.config, field))
