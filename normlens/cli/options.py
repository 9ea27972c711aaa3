"""Options that several commands share, and what they turn into."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from normlens.models.cache import cache_directory


@Parameter(name="*")
@dataclass(frozen=True)
class ModelOptions:
    """How models are opened."""

    device: str = "cpu"
    """Torch device: cpu, cuda, cuda:1, mps."""
    dtype: Literal["float32", "bfloat16", "float16", "float64"] | None = None
    """Dtype to analyse in; by default float32."""
    revision: str | None = None
    """Revision of a hub model."""
    convert: Annotated[bool, Parameter(negative=())] = False
    """Turn an eps-encoded LN-free model into exact fixed-scale norms first."""
    threads: Annotated[int | None, Parameter(negative=())] = None
    """CPU threads; by default what torch chooses."""


@Parameter(name="*")
@dataclass(frozen=True)
class TextOptions:
    """Which text is read, and how."""

    text: str = "books"
    """Corpus: books (bundled held-out excerpts), a .txt or .jsonl file, or a directory."""
    sequences: int = 256
    """Sequences to read, spread evenly over the corpus; 0 reads all."""
    context: int | None = None
    """Tokens per sequence; by default the smaller of 512 and the model's own."""
    bos: Literal["prepend", "none"] = "prepend"
    """Whether every sequence starts with the tokenizer's BOS."""
    batch_size: int = 16
    """Sequences per forward pass; lower it when memory is short."""


@Parameter(name="*")
@dataclass(frozen=True)
class StoreOptions:
    """What is kept, and what is computed again."""

    store: Path | None = None
    """Directory of stored results and unfinished passes; by default in the user cache."""
    fresh: Annotated[bool, Parameter(negative=())] = False
    """Compute again even if a result is stored."""
    seed: int = 0
    """Seed of the bootstrap intervals."""

    def root(self) -> Path:
        """The store's directory."""
        return self.store or cache_directory("store")


def as_config(*options: Any) -> dict[str, Any]:
    """Options as JSON-serialisable data, for the report."""
    merged: dict[str, Any] = {}
    for option in options:
        merged |= {key: str(v) if isinstance(v, Path) else v for key, v in asdict(option).items()}
    return merged
