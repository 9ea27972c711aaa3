"""Which models descend from one another, as their weights show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RELATED_COSINE = 0.5


@dataclass(frozen=True)
class Relation:
    """Two models of a comparison and the cosine between their weights.

    Attributes:
        model: the later model in display order.
        other: the earlier one.
        cosine: between the weights both have, dimensionless; NaN when they share none.
        related: whether one was fine-tuned from the other, or both from a third.
    """

    model: str
    other: str
    cosine: float
    related: bool


def relations(
    models: Sequence[str], provenance: Mapping[str, Mapping[str, Any]]
) -> tuple[Relation, ...]:
    """Every model against the first, from ``weight_cosine_to_reference`` in its provenance.

    Related are models whose cosine is above :data:`RELATED_COSINE`: independently trained
    ones are near 0, fine-tuned ones near 1. Models without the entry are left out.
    """
    found: list[Relation] = []
    for model in models[1:]:
        cosine = provenance.get(model, {}).get("weight_cosine_to_reference")
        if cosine is not None:
            value = float(cosine)
            found.append(Relation(model, models[0], value, value > RELATED_COSINE))
    return tuple(found)


def families(models: Sequence[str], related: Sequence[Relation]) -> tuple[tuple[str, ...], ...]:
    """Groups of models that are related directly or through others, in display order."""
    family = {model: {model} for model in models}
    for relation in related:
        if relation.related and relation.model in family and relation.other in family:
            joined = family[relation.model] | family[relation.other]
            for member in joined:
                family[member] = joined
    groups = {tuple(m for m in models if m in family[model]): None for model in models}
    return tuple(groups)
