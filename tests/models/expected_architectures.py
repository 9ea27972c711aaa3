"""The tiny architectures opened, and what they are expected to be, written down by hand."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from normlens.hooks import Hook, hooked
from normlens.models import open_model
from normlens.models.context import UNLIMITED
from normlens.models.lens import Lens
from normlens.models.verify import sample_tokens
from normlens.norms import NormKind
from tests.architectures import ARCHITECTURES, POSITIONS
from tests.tiny import EPS

PRE = "pre_attn pre_mlp"
SANDWICH = "pre_attn post_attn pre_mlp post_mlp"
QK = "q:4 k:2"


@dataclass(frozen=True)
class Expected:
    """Norms of a block in order of execution, with the number of heads, and the outer ones.

    ``stream`` names the roles whose output becomes the residual stream.
    """

    block: str
    first: str = ""
    last: str = "final"
    kind: NormKind = NormKind.LAYER_NORM
    stream: frozenset[str] = frozenset()
    eps: float = EPS
    parallel: bool = False
    causal: bool = True
    context: int = POSITIONS


def rms(block: str) -> Expected:
    return Expected(block, kind=NormKind.RMS_NORM)


POST = frozenset({"post_attn", "post_mlp", "embed"})

EXPECTED = {
    "gpt2": Expected(PRE),
    "gptj": Expected("pre_attn", parallel=True),
    "gpt-neox": Expected(PRE, parallel=True),
    "gpt-neox-sequential": Expected(PRE),
    "opt": Expected(PRE),
    "opt-post": Expected("post_attn post_mlp", last="", stream=POST),
    "llama": rms(PRE),
    "mistral": rms(PRE),
    "qwen2": rms(PRE),
    "qwen3": rms(f"pre_attn {QK} pre_mlp"),
    "gemma": rms(PRE),
    "gemma2": rms(SANDWICH),
    "gemma3": rms(f"pre_attn {QK} post_attn pre_mlp post_mlp"),
    "phi": Expected("pre_attn", parallel=True),
    "phi-qk": Expected(f"pre_attn {QK}", parallel=True),
    "phi3": rms(PRE),
    "olmo": Expected(PRE, eps=1e-5),
    "olmo2": rms("q k post_attn post_mlp"),
    "olmo3": rms("q k post_attn post_mlp"),
    "granite": rms(PRE),
    "cohere": Expected(f"pre_attn {QK}", parallel=True),
    "cohere-plain": Expected("pre_attn", parallel=True),
    "cohere2": Expected("pre_attn", parallel=True),
    "stablelm": Expected(PRE),
    "stablelm-qk": Expected(f"pre_attn {QK}", parallel=True),
    "nemotron": Expected(PRE),
    "bloom": Expected(PRE, first="embed", stream=POST, context=UNLIMITED),
    "falcon": Expected("pre_attn", parallel=True),
    "falcon-new": Expected(PRE, parallel=True),
    "falcon-sequential": Expected(PRE),
    "starcoder2": Expected(PRE),
    "mpt": Expected(PRE),
    "glm4": rms(SANDWICH),
    "bert": Expected("post_attn post_mlp", "embed", "other", stream=POST, causal=False),
    "bert-encoder": Expected("post_attn post_mlp", "embed", "", stream=POST, causal=False),
    "decoder": Expected(PRE),
    "decoder-sandwich-qk": rms(f"pre_attn {QK} post_attn pre_mlp post_mlp"),
    "decoder-post": Expected("post_attn post_mlp", last="", stream=POST),
    "decoder-hybrid": Expected("q:4 k:4 v pre_mlp", stream=frozenset({"pre_mlp"})),
    "decoder-every-linear": Expected("pre_attn pre_o pre_mlp pre_down"),
    "decoder-ngpt": Expected(
        "q:4 k:4 post_attn exit_attn post_mlp exit_mlp",
        first="embed",
        last="",
        kind=NormKind.RMS_NORM,
        stream=frozenset({"embed", "exit_attn", "exit_mlp"}),
    ),
}


def labels(expected: Expected) -> list[tuple[str, int]]:
    block = [tuple(word.partition(":")[::2]) for word in expected.block.split()]
    inner = [(f"{i}.{role}", int(heads or 1)) for i in range(2) for role, heads in block]
    return [
        *((role, 1) for role in expected.first.split()),
        *inner,
        *((role, 1) for role in expected.last.split()),
    ]


every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@functools.cache
def opened(architecture: str) -> Lens:
    """One lens per architecture, for tests that only read and run it."""
    return open_model(ARCHITECTURES[architecture](), tokenizer=None)


@dataclass
class Store:
    """Keeps a tensor a hook meets."""

    value: Tensor = field(default_factory=lambda: torch.empty(0))

    def __call__(self, x: Tensor) -> None:
        self.value = x.detach().clone()


def run(lens: Lens, hooks: list[Hook], ids: Tensor | None = None) -> Tensor:
    with torch.inference_mode(), hooked(lens.model, hooks):
        return lens.model(
            input_ids=sample_tokens(lens.model) if ids is None else ids, return_dict=True
        )[0]
