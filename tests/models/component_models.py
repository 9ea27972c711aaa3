"""Tiny models of every norm kind for the component view, and a Lens around each."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn
from transformers import GPT2LMHeadModel, PreTrainedModel

from normlens.models.build import build_lens
from normlens.models.components import ComponentView, component_view
from normlens.models.lens import Identity, Lens, Lineage
from tests.tiny import VOCABULARY, tiny_fixed_scale, tiny_gpt2, tiny_llama


def lens_of(model: PreTrainedModel) -> Lens:
    return build_lens(model, None, Identity("tiny", "memory", "0", "0"), Lineage())


def eps_encoded() -> GPT2LMHeadModel:
    """The public LN-free format: eps 1e12 and weights times 1e6 / scale."""
    model = tiny_gpt2(3)
    for index, norm in enumerate(_layer_norms(model)):
        norm.eps = 1e12
        norm.weight.data *= 1e6 / (1.5 + 0.2 * index)
    return model


def identity_norms() -> GPT2LMHeadModel:
    model = tiny_gpt2(4)
    for name in [n for n, m in model.named_modules() if isinstance(m, nn.LayerNorm)]:
        model.set_submodule(name, nn.Identity())
    return model


def eps_unlike_config() -> GPT2LMHeadModel:
    """Every module's eps is 0.3, the config's 1e-5."""
    model = tiny_gpt2(5, layer_norm_epsilon=1e-5)
    for norm in _layer_norms(model):
        norm.eps = 0.3
    return model


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "layer_norm": tiny_gpt2,
    "rms_norm": tiny_llama,
    "llama_biases": lambda: tiny_llama(attention_bias=True, mlp_bias=True),
    "fixed_scale": tiny_fixed_scale,
    "eps_encoded": eps_encoded,
    "identity": identity_norms,
    "eps_unlike_config": eps_unlike_config,
}


@functools.cache
def shared(kind: str, patterns: bool = False) -> tuple[Lens, ComponentView]:
    """One lens and view per kind, for tests that only read and run them."""
    lens = lens_of(MODELS[kind]())
    return lens, component_view(lens, patterns=patterns)


LENGTH = 10
RIGHT = [[1] * LENGTH, [1] * 7 + [0] * 3]
LEFT = [[1] * LENGTH, [0] * 3 + [1] * 7]
MASKS: dict[str, list[list[int]] | None] = {"unpadded": None, "right": RIGHT, "left": LEFT}


def batch(padding: str = "unpadded") -> tuple[torch.Tensor, torch.Tensor | None]:
    """Two random rows of ids and their mask."""
    ids = torch.randint(VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(7))
    mask = MASKS[padding]
    return ids, None if mask is None else torch.tensor(mask)


def _layer_norms(model: nn.Module) -> list[nn.LayerNorm]:
    return [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
