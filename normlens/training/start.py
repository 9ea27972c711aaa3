"""The model that training starts from: initialised from a seed, or an ancestor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.activations import ACT2FN

from normlens.errors import NotApplicable, UsageError
from normlens.models.lens import Lens
from normlens.models.listing import bundled_directories
from normlens.models.opening import open_model
from normlens.resources import data_path
from normlens.training.recipe import Architecture, Recipe
from normlens.training.split import corpus_hash

DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


@dataclass(frozen=True)
class Start:
    """A trainable float32 model without dropout, on the CPU.

    ``ancestor_sha256`` is the digest of the ancestor's weight files (name and content), or
    of its weights where it came from the hub; empty for an initialised model.
    """

    model: GPT2LMHeadModel
    tokenizer: PreTrainedTokenizerBase
    ancestor_sha256: str


def start_of(recipe: Recipe) -> Start:
    """What ``recipe`` starts from, with every random generator seeded for it.

    Raises:
        UsageError: the architecture cannot be built, or the context exceeds the ancestor's.
        ModelNotFound: no such ancestor; other load errors as ``open_model``.
        NotApplicable: the ancestor is not a GPT-2-type model.
    """
    if recipe.architecture is not None:
        return _initialised(recipe.architecture, recipe.seed)
    start = open_ancestor(str(recipe.ancestor))
    longest = start.model.config.n_positions
    if recipe.context is not None and recipe.context > longest:
        raise UsageError(
            f"context {recipe.context} exceeds the {longest} positions of {recipe.ancestor}"
        )
    set_seed(recipe.seed)
    return start


def open_ancestor(source: str) -> Start:
    """A bundled, local or hub model to train on from.

    Raises:
        ModelNotFound: nothing there; other load errors as ``open_model``.
        NotApplicable: not a GPT-2-type model.
        UsageError: it has no tokenizer.
    """
    lens = open_model(source)
    return Start(_trainable(lens), _tokenizer(lens), _ancestor_sha256(lens, source))


def gpt2_config(architecture: Architecture, bos: int) -> GPT2Config:
    """The HF configuration of an architecture; no dropout."""
    return GPT2Config(
        vocab_size=architecture.vocabulary,
        n_positions=architecture.context,
        n_embd=architecture.width,
        n_layer=architecture.layers,
        n_head=architecture.heads,
        activation_function=architecture.activation,
        layer_norm_epsilon=architecture.norm_eps,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=bos,
        eos_token_id=bos,
    )


def _initialised(architecture: Architecture, seed: int) -> Start:
    if architecture.activation not in ACT2FN:
        known = ", ".join(sorted(ACT2FN))
        raise UsageError(
            f"architecture.activation {architecture.activation!r} is unknown; choose one of {known}"
        )
    tokenizer = AutoTokenizer.from_pretrained(data_path("tokenizer"))
    if architecture.vocabulary < len(tokenizer):
        raise UsageError(
            f"architecture.vocabulary {architecture.vocabulary} is smaller than the tokenizer's "
            f"{len(tokenizer)}; raise it"
        )
    set_seed(seed)
    return Start(GPT2LMHeadModel(gpt2_config(architecture, tokenizer.bos_token_id)), tokenizer, "")


def _trainable(lens: Lens) -> GPT2LMHeadModel:
    model = lens.model
    if not isinstance(model, GPT2LMHeadModel):
        raise NotApplicable(
            f"training continues GPT-2-type models, and {lens.identity.name} is a "
            f"{type(model).__name__} with {_kinds(lens)} norms; no recipe for removing the scales "
            "of such a model is known"
        )
    # Dropout draws from a generator whose state a checkpoint does not hold.
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for name in DROPOUTS:
        setattr(model.config, name, 0.0)
    model.requires_grad_(True)
    return model


def _tokenizer(lens: Lens) -> PreTrainedTokenizerBase:
    if lens.tokenizer is None:
        raise UsageError(f"{lens.identity.name} has no tokenizer; save one beside the model")
    return lens.tokenizer


def _kinds(lens: Lens) -> str:
    return " and ".join(sorted({site.spec.kind.value for site in lens.sites}))


def _ancestor_sha256(lens: Lens, source: str) -> str:
    directory = bundled_directories().get(source, Path(source))
    files = sorted(directory.glob("*.safetensors")) if directory.is_dir() else []
    return corpus_hash(files) if files else lens.identity.weights_sha256
