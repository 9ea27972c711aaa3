"""Tiny random models in which every parameter matters.

All parameters are drawn at random, gains around 1, biases around 0, embeddings with a
non-zero mean, and the norms have an unusual eps: a test on them fails when a gain, a
bias, a mean or an eps is dropped. Models are float32, in eval mode, and fresh at each call.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from normlens.norms import FixedScale, NormModule
from normlens.resources import data_path

VOCABULARY = 4096
EPS = 3e-4

ModelT = TypeVar("ModelT", bound=PreTrainedModel)


def tokenizer() -> PreTrainedTokenizerBase:
    """The bundled byte-level BPE of 4,096 tokens, BOS ``<|bos|>``."""
    return AutoTokenizer.from_pretrained(data_path("tokenizer"))


def tiny_gpt2(seed: int = 0, **overrides: Any) -> GPT2LMHeadModel:
    """A 2-layer GPT-2 of width 32 with 4 heads; ``overrides`` are GPT2Config fields."""
    fields: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "n_positions": 64,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "layer_norm_epsilon": EPS,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    _known(GPT2Config, overrides)
    return randomise(GPT2LMHeadModel(GPT2Config(**{**fields, **overrides})), seed)


def tiny_llama(seed: int = 0, **overrides: Any) -> LlamaForCausalLM:
    """A 2-layer Llama of width 32, 4 heads on 2 key-value heads; overrides as above."""
    fields: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": EPS,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": False,
    }
    _known(LlamaConfig, overrides)
    return randomise(LlamaForCausalLM(LlamaConfig(**{**fields, **overrides})), seed)


def tiny_fixed_scale(seed: int = 0, **overrides: Any) -> GPT2LMHeadModel:
    """:func:`tiny_gpt2` whose norms are all FixedScale, each with a scale of its own."""
    model = tiny_gpt2(seed, **overrides)
    generator = torch.Generator().manual_seed(seed + 1000)
    names = [name for name, m in model.named_modules() if isinstance(m, nn.LayerNorm)]
    for name in names:
        old = model.get_submodule(name)
        assert isinstance(old, nn.LayerNorm)
        scale = 1.5 + 2.0 * torch.rand((), generator=generator).item()
        new = FixedScale(old.weight.shape[0], scale)
        new.weight, new.bias = old.weight, old.bias
        model.set_submodule(name, new)
    return model.eval()


def randomise(model: ModelT, seed: int) -> ModelT:
    """Redraw every parameter of ``model`` in place; returns it in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    norms = {name for name, m in model.named_modules() if _is_norm(m)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            owner, _, leaf = name.rpartition(".")
            if owner in norms:
                offset = leaf == "weight" and _is_unit_offset(model.get_submodule(owner))
                one = leaf in ("weight", "alpha") and not offset
                parameter.copy_(one + 0.3 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.1 * noise)
            elif isinstance(model.get_submodule(owner), nn.Embedding):
                parameter.copy_(0.2 + 0.5 * noise)
            else:
                fan_in = parameter.shape[isinstance(model.get_submodule(owner), nn.Linear)]
                parameter.copy_(noise * (1.5 / fan_in**0.5))
    return model.eval()


def _is_norm(module: nn.Module) -> bool:
    name = type(module).__name__
    return (
        isinstance(module, (nn.LayerNorm, NormModule)) or "RMSNorm" in name or "LayerNorm" in name
    )


def _is_unit_offset(module: nn.Module) -> bool:
    name = type(module).__name__
    return name.startswith("Gemma") or name.endswith("1P")


def _known(config: type, overrides: dict[str, Any]) -> None:
    unknown = [name for name in overrides if name not in config().to_dict()]
    assert not unknown, f"{config.__name__} has no field {unknown}"
