"""The norm between the residual stream and the unembedding, whose scale can be held steady."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from normlens.errors import NotApplicable
from normlens.models.detect import live_spec
from normlens.models.families import family_of


@dataclass(frozen=True)
class FinalNorm:
    """Where it is, and the constants of its live scale."""

    path: str
    eps: float
    centred: bool


def final_norm(model: PreTrainedModel) -> FinalNorm:
    """The final norm of a model, read from its module.

    Raises:
        NotApplicable: there is none, or its scale is no root of a mean square and an eps.
    """
    path = family_of(model).final_norm
    if path is None:
        raise NotApplicable(
            f"the auxiliary scale loss acts on a final norm, and {type(model).__name__} has none; "
            "leave [auxiliary] out"
        )
    spec = live_spec(model.get_submodule(path), model.config.hidden_size)
    if spec.eps is None or not spec.kind.has_live_scale:
        raise NotApplicable(
            f"the auxiliary scale loss acts on a live scale, and {path} is {spec.kind.value}; "
            "leave [auxiliary] out"
        )
    return FinalNorm(path, spec.eps, spec.centred)
