"""Which models descend from one another, as provenance states it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Relation:
    """Two models of a comparison and the cosine between their weights.

    Attributes:
        model: the later model in display order.
        other: the earlier one.
        cosine: of all shared weights flattened into one vector, dimensionless.
        related: whether one was fine-tuned from the other, or both from a third.
    """

    model: str
    other: str
    cosine: float
    related: bool


def relations(
    models: Sequence[str], provenance: Mapping[str, Mapping[str, Any]]
) -> tuple[Relation, ...]:
    """Every related pair that provenance lists under ``related_to``.

    ``related_to`` is a mapping ``model -> cosine`` or a list of mappings with the keys
    ``model`` and ``cosine``. A pair is listed once, the earlier model second.
    """
    found: dict[frozenset[str], Relation] = {}
    for position, model in enumerate(models):
        for other, cosine in _cosines(provenance.get(model, {}).get("related_to")).items():
            if other == model or other not in models:
                continue
            later, earlier = (model, other) if models.index(other) < position else (other, model)
            found.setdefault(frozenset((model, other)), Relation(later, earlier, cosine, True))
    return tuple(found.values())


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


def _cosines(related_to: Any) -> dict[str, float]:
    if isinstance(related_to, Mapping):
        return {str(model): float(cosine) for model, cosine in related_to.items()}
    return {str(entry["model"]): float(entry["cosine"]) for entry in related_to or ()}
