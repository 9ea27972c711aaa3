"""A training run with everything it needs in memory: model, batches, evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from normlens.models.devices import usable_device
from normlens.text import Documents, encode, read_documents
from normlens.training.recipe import Recipe
from normlens.training.removal_sites import removal_switches
from normlens.training.schedule import check_schedule
from normlens.training.start import start_of
from normlens.training.stream import TokenStream, Windows
from normlens.training.text import TrainingText


@dataclass(frozen=True)
class Job:
    """One run, ready to train.

    Attributes:
        recipe: what to do.
        model: float32, on the device to train on.
        tokenizer: of the model.
        stream: training batches by step.
        held_out: sequences of the running evaluation, on the CPU.
        identity: what a checkpoint must agree on to be resumed.
        option: how the command line names the training text.
    """

    recipe: Recipe
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stream: TokenStream
    held_out: Int[Tensor, "sequence context"]
    identity: dict[str, str]
    option: str

    @property
    def context(self) -> int:
        """Tokens per sequence, BOS included."""
        return int(self.held_out.shape[1])


def prepare(
    recipe: Recipe,
    text: TrainingText,
    *,
    held_out: Documents | None = None,
    device: str = "cpu",
    windows: Windows | None = None,
) -> Job:
    """Open the model, tokenise the text, and check that the recipe can be carried out.

    Args:
        recipe: what to do.
        text: what to train on.
        held_out: what to evaluate on; by default the bundled held-out excerpts.
        device: where to train.
        windows: of a process that prepares several jobs, so that they tokenise once.

    Raises:
        UsageError: the recipe does not fit the model, the text or this machine.
        NotApplicable: the recipe asks for a removal that this model does not allow.
        LoadError: the ancestor or a text cannot be read.
    """
    target = usable_device(device)
    start = start_of(recipe)
    if recipe.removal is not None:
        check_schedule(recipe.removal, removal_switches(start.model), recipe.steps)
    context = recipe.context or start.context
    stream = TokenStream(
        (windows or Windows()).of(text, start.tokenizer, context),
        start.tokenizer,
        batch_size=recipe.batch_size,
        data_seed=recipe.data_seed,
    )
    documents = held_out or read_documents("books")
    evaluated = encode(documents, start.tokenizer, context=context, tails=False).ids
    count = min(recipe.evaluation_sequences, len(evaluated))
    rows = np.linspace(0, len(evaluated) - 1, count).round().astype(int)
    identity = {
        "recipe": recipe.digest(),
        "corpus": text.sha256,
        "ancestor": start.ancestor_sha256,
    }
    nn.Module.to(start.model, target)
    return Job(recipe, start.model, start.tokenizer, stream, evaluated[rows], identity, text.option)
