"""The model that training starts from: initialised from a seed, or an ancestor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from normlens.errors import NotApplicable, UsageError
from normlens.models.context import UNLIMITED, context_length
from normlens.models.families import family_of
from normlens.models.lens import Lens
from normlens.models.listing import bundled_directories
from normlens.models.opening import open_model
from normlens.training.dropout import remove_dropout
from normlens.training.initialise import initialised
from normlens.training.recipe import Recipe
from normlens.training.split import corpus_hash


@dataclass(frozen=True)
class Start:
    """A trainable float32 model without dropout, on the CPU.

    Attributes:
        model: a causal LM.
        tokenizer: of the model.
        context: longest sequence its positions allow.
        ancestor_sha256: the digest of the ancestor's weight files (name and content), or of
            its weights where it came from the hub; empty for an initialised model.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    context: int
    ancestor_sha256: str


def start_of(recipe: Recipe) -> Start:
    """What ``recipe`` starts from, with every random generator seeded for it.

    Raises:
        UsageError: the model cannot be built, or the context exceeds the ancestor's.
        ModelNotFound: no such ancestor; other load errors as ``open_model``.
        NotApplicable: the ancestor is no causal language model.
    """
    if recipe.ancestor is None:
        new = initialised(recipe)
        return Start(new.model, new.tokenizer, new.context, "")
    start = open_ancestor(recipe.ancestor)
    if recipe.context is not None and recipe.context > start.context:
        raise UsageError(
            f"context {recipe.context} exceeds the {start.context} positions of {recipe.ancestor}"
        )
    if recipe.context is None and start.context == UNLIMITED:
        raise UsageError(f"the positions of {recipe.ancestor} never end; give a context")
    set_seed(recipe.seed)
    return start


def open_ancestor(source: str) -> Start:
    """A bundled, local or hub model to train on from.

    Raises:
        ModelNotFound: nothing there; other load errors as ``open_model``.
        NotApplicable: no causal language model.
        UsageError: it has no tokenizer.
    """
    lens = open_model(source)
    model = _trainable(lens)
    return Start(model, _tokenizer(lens), context_length(lens), _ancestor_sha256(lens, source))


def _trainable(lens: Lens) -> PreTrainedModel:
    family = family_of(lens.model)
    if family.unembedding is None or not family.causal:
        raise NotApplicable(
            f"training continues causal language models, and {lens.identity.name} is a "
            f"{type(lens.model).__name__}, which predicts no next token; use a decoder"
        )
    remove_dropout(lens.model)
    nn.Module.requires_grad_(lens.model, True)
    return lens.model


def _tokenizer(lens: Lens) -> PreTrainedTokenizerBase:
    if lens.tokenizer is None:
        raise UsageError(f"{lens.identity.name} has no tokenizer; save one beside the model")
    return lens.tokenizer


def _ancestor_sha256(lens: Lens, source: str) -> str:
    directory = bundled_directories().get(source, Path(source))
    files = sorted(directory.glob("*.safetensors")) if directory.is_dir() else []
    return corpus_hash(files) if files else lens.identity.weights_sha256
