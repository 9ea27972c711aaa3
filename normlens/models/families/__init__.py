"""Where each family of architectures keeps its parts: rows of data.

Paths are module paths of the Hugging Face class. Nothing outside this package needs to
know what a family is: sites and components are resolved through these rows. A family that
comes in several layouts, decided by its config, has a row for each.
"""

from __future__ import annotations

from transformers import PreTrainedModel

from normlens.errors import LoadError
from normlens.models.families import bert, composed, falcon, gpt, llama, parallel, sandwich
from normlens.models.families.row import Family, NormRule

__all__ = ["FAMILIES", "SUPPORTED", "Family", "NormRule", "family_named", "family_of"]

FAMILIES = (
    *gpt.ROWS,
    *llama.ROWS,
    *sandwich.ROWS,
    *parallel.ROWS,
    *falcon.ROWS,
    *bert.ROWS,
    *composed.ROWS,
)
"""Every row; of those that hold for a model the first counts."""

SUPPORTED = tuple(dict.fromkeys(row.model_type for row in FAMILIES))


def family_of(model: PreTrainedModel) -> Family:
    """The row for a model, by ``config.model_type`` and what the rows of that type ask.

    Raises:
        LoadError: there is no row for that model type, or none for this layout of it.
    """
    family_named(model.config.model_type)
    for row in FAMILIES:
        if row.model_type == model.config.model_type and _holds(row, model):
            return row
    raise LoadError(
        f"{type(model).__name__} of model type {model.config.model_type!r} is laid out as no "
        f"supported model of that type is; supported: {_conditions(model.config.model_type)}"
    )


def family_named(model_type: str) -> Family:
    """The first row for a model type.

    Raises:
        LoadError: there is none.
    """
    for row in FAMILIES:
        if row.model_type == model_type:
            return row
    raise LoadError(
        f"model type {model_type!r} is not supported; supported: {', '.join(SUPPORTED)}"
    )


def _holds(row: Family, model: PreTrainedModel) -> bool:
    names = {base.__name__ for base in type(model).__mro__}
    right_class = row.model_class is None or row.model_class in names
    # Not config.to_dict(), which copies all of it: a pass asks once per block and batch.
    return right_class and all(getattr(model.config, f, None) == value for f, value in row.when)


def _conditions(model_type: str) -> str:
    rows = [row for row in FAMILIES if row.model_type == model_type]
    return "; ".join(
        ", ".join((row.model_class or "any head", *(f"{name}={value}" for name, value in row.when)))
        for row in rows
    )
