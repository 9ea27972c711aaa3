"""Untying: the unembedding gets a weight of its own, equal to the embedding's.

Folding a final norm into the unembedding, or changing the basis the embeddings write in,
would otherwise change both.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from normlens.errors import NotApplicable
from normlens.models.copying import structural_copy
from normlens.models.edits.conversion import convert
from normlens.models.edits.edit import Edited
from normlens.models.lens import Lens


@dataclass(frozen=True)
class Untie:
    """See :func:`untie`."""

    @property
    def name(self) -> str:
        """What ``lens.edits`` records."""
        return "untie"

    @property
    def tolerance(self) -> str:
        """Exact: the row of the tolerance file."""
        return "conversion_logits"

    def __call__(self, lens: Lens) -> Edited:
        """The untied model."""
        model = structural_copy(lens.model)
        if not untie_in_place(model):
            raise NotApplicable(f"the embeddings of {lens.identity.name} are not tied")
        return Edited(model)


def untie(lens: Lens) -> Lens:
    """A lens whose unembedding does not share its weight with the embedding; exact.

    Raises:
        NotApplicable: they are not tied.
    """
    return convert(lens, Untie()).lens


def untie_in_place(model: PreTrainedModel) -> bool:
    """Untie a structural copy; whether there was anything to untie.

    The config says so from then on, which is what loading the saved model goes by.
    """
    unembedding, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if unembedding is None:
        return False
    weight = unembedding.get_parameter("weight")
    if weight.data_ptr() != embedding.get_parameter("weight").data_ptr():
        return False
    unembedding.register_parameter("weight", nn.Parameter(weight.detach().clone(), False))
    model.config.tie_word_embeddings = False
    model.all_tied_weights_keys = {}
    return True
