"""Why an analysis does not apply to a model, as far as its declaration can tell."""

from __future__ import annotations

from normlens.catalog import Analysis, Need
from normlens.models.families import family_of
from normlens.models.lens import Lens


def why_not(analysis: Analysis, lens: Lens, reference: Lens | None) -> str:
    """The reason in words; empty where nothing in the declaration speaks against it.

    Args:
        analysis: what is to be run.
        lens: the model.
        reference: the model to compare with, if there is one.
    """
    name = lens.identity.name
    predicts = Need.LOGITS in analysis.needs or Need.COMPONENTS in analysis.needs
    if (predicts or analysis.style == "procedure") and not family_of(lens.model).causal:
        return f"{name} is an encoder: it reads both ways and predicts no next token"
    if analysis.compares and reference is None:
        return f"there is no model to compare {name} with; the first of several is the reference"
    if (
        analysis.compares
        and reference is not None
        and reference.identity.weights_sha256 == lens.identity.weights_sha256
        and reference.edits == lens.edits
    ):
        return f"{name} is the reference itself"
    return ""
