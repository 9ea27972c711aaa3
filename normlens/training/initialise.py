"""Models before training, from the description in a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.activations import ACT2FN

from normlens.errors import NormlensError, UsageError
from normlens.resources import data_path
from normlens.text.encoding import require_bos
from normlens.training.recipe import Architecture, Recipe

if TYPE_CHECKING:
    from normlens.decoder import DecoderConfig


@dataclass(frozen=True)
class Initialised:
    """A model with the weights of its seed, its tokenizer and its longest sequence."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    context: int


def initialised(recipe: Recipe) -> Initialised:
    """What a recipe without an ancestor starts from; every random generator is seeded.

    Raises:
        UsageError: it cannot be built, or its vocabulary is smaller than the tokenizer's.
    """
    tokenizer = _tokenizer(recipe.tokenizer)
    bos = require_bos(tokenizer)
    if recipe.architecture is not None:
        shape = recipe.architecture
        _require_rows("architecture.vocabulary", shape.vocabulary, tokenizer)
        config = gpt2_config(shape, bos)
        set_seed(recipe.seed)
        return Initialised(GPT2LMHeadModel(config), tokenizer, shape.context)

    from normlens.decoder import DecoderForCausalLM

    ends = {"bos_token_id": bos, "eos_token_id": bos}
    described = decoder_config(recipe.decoder or {}, where=f"recipe {recipe.name}", **ends)
    _require_rows("decoder.vocab_size", described.vocab_size, tokenizer)
    set_seed(recipe.seed)
    model = DecoderForCausalLM(described)
    return Initialised(model, tokenizer, described.max_position_embeddings)


def gpt2_config(architecture: Architecture, bos: int) -> GPT2Config:
    """The HF configuration of an architecture; no dropout.

    Raises:
        UsageError: the activation is unknown.
    """
    if architecture.activation not in ACT2FN:
        known = ", ".join(sorted(ACT2FN))
        raise UsageError(
            f"architecture.activation {architecture.activation!r} is unknown; choose one of {known}"
        )
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


def decoder_config(fields: dict[str, Any], *, where: str, **more: Any) -> DecoderConfig:
    """The configuration of a ``[decoder]`` table.

    Args:
        fields: of :class:`normlens.decoder.DecoderConfig`.
        where: names the source in errors.
        more: fields that the recipe does not write down (token ids).

    Raises:
        UsageError: an unknown field, or a value that does not fit.
    """
    from normlens.decoder import DecoderConfig

    # A Hugging Face config takes any other field for an attribute and says nothing.
    known = DecoderConfig().to_dict()
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise UsageError(f"{where}: decoder.{unknown[0]} is no field of a decoder; fix the name")
    try:
        return DecoderConfig(**fields, **more)
    except NormlensError as error:
        raise UsageError(f"{where}: decoder: {error}") from error
    except (StrictDataclassError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{where}: decoder: {reason}; fix the field") from error


def _tokenizer(name: str) -> PreTrainedTokenizerBase:
    path = data_path(name)
    if not (path / "tokenizer.json").is_file():
        raise UsageError(f"no tokenizer in {path}; `normlens prepare-corpus` makes it")
    return AutoTokenizer.from_pretrained(path)


def _require_rows(field: str, vocabulary: int, tokenizer: PreTrainedTokenizerBase) -> None:
    if vocabulary < len(tokenizer):
        raise UsageError(
            f"{field} {vocabulary} is smaller than the tokenizer's {len(tokenizer)}; raise it"
        )
