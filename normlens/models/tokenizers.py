"""The tokenizer of a model directory, and whether it fits the model."""

from __future__ import annotations

from pathlib import Path
from types import EllipsisType

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from normlens.errors import CorruptModel, LoadError, NotApplicable
from normlens.models.lens import Lens
from normlens.models.quiet import quiet_transformers

TokenizerChoice = PreTrainedTokenizerBase | EllipsisType | None
"""A tokenizer, None for none, or ``...`` for the one that comes with the model."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def load_tokenizer(path: Path, choice: TokenizerChoice) -> PreTrainedTokenizerBase | None:
    """``choice``, or the tokenizer saved in ``path`` where it is ``...``.

    Raises:
        LoadError: there is none in ``path``.
        CorruptModel: it cannot be read.
    """
    if not isinstance(choice, EllipsisType):
        return choice
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise LoadError(
            f"{path} has no tokenizer; save one there, or open with tokenizer=... or tokenizer=None"
        )
    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # damaged tokenizer files raise nearly anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CorruptModel(f"the tokenizer in {path} cannot be read: {reason}") from error


def require_fit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Check that the model has an embedding for every token.

    Raises:
        LoadError: the tokenizer has more tokens than the model has embeddings.
    """
    rows = model.get_input_embeddings().get_parameter("weight").shape[0]
    if tokenizer is not None and len(tokenizer) > rows:
        raise LoadError(
            f"the tokenizer has {len(tokenizer)} tokens, the model embeds {rows}; "
            "use the tokenizer the model was trained with"
        )


def tokenizer_of(lens: Lens) -> PreTrainedTokenizerBase:
    """The tokenizer of a lens.

    Raises:
        NotApplicable: the model was opened without one.
    """
    if lens.tokenizer is None:
        raise NotApplicable(
            f"{lens.identity.name} was opened without a tokenizer; open it with tokenizer=..."
        )
    return lens.tokenizer
