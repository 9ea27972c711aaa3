"""Tiny decoders of every scheme in which every parameter matters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normlens.decoder import PLACEMENTS, DecoderConfig, DecoderForCausalLM
from normlens.decoder.combine import LearnedScale
from normlens.models.detect import is_norm
from tests.tiny import EPS, VOCABULARY

LAYER_NORM = {"kind": "layer_norm", "eps": EPS, "gain": True, "bias": True}
RMS_NORM = {"kind": "rms_norm", "eps": EPS, "gain": True}
L2_NORM = {"kind": "l2_norm", "eps": 1e-9}
DYT = {"kind": "dyt", "alpha": 0.5, "gain": True, "bias": True}
IDENTITY = {"kind": "identity"}

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "norm": LAYER_NORM,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

LLAMA_LIKE: dict[str, Any] = {
    "num_key_value_heads": 2,
    "positions": "rotary",
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "gated": True,
    "activation": "silu",
    "linear_bias": False,
    "tie_word_embeddings": False,
}

NGPT: dict[str, Any] = {
    "placement": "ngpt",
    "norm": L2_NORM,
    "qk_norm": {**L2_NORM, "gain": True},
    "attention_scale": 8**0.5,
    "initialisation": "ngpt",
}

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"placement": name} for name in PLACEMENTS if name != "ngpt"},
    **{
        f"{name}-llama": {"placement": name, "norm": RMS_NORM, **LLAMA_LIKE}
        for name in PLACEMENTS
        if name != "ngpt"
    },
    "ngpt": NGPT,
    "ngpt-llama": {**NGPT, **LLAMA_LIKE},
    "norm-free": {
        "norm": IDENTITY,
        "final_norm": LAYER_NORM,
        "activation": "learnable_leaky_relu",
        "branch_scale": 0.7,
    },
    "no-final-norm": {"final_norm": None},
    "dyt": {"norm": DYT},
    "qk-norm": {"qk_norm": L2_NORM, "qk_temperature": 6.0, "num_key_value_heads": 1},
    "embedding-norm": {"embedding_norm": RMS_NORM},
    "embedding-scale": {"embedding_scale": 3.0},
    "layer-norm-scaling": {"depth_factor": "inverse_sqrt", "initialisation": "normal"},
    "softplus": {"attention": "softplus_l1"},
    "relu": {"attention": "relu", "num_key_value_heads": 2},
    "weight-norm": {"linear": "weight_norm", "activation": "relu"},
    "weight-conditioning": {"linear": "weight_conditioning"},
    "fixup": {"norm": IDENTITY, "initialisation": "fixup", "branch_scale": 1.0},
    "scaled-sandwich": {"placement": "sandwich", "branch_scale": 0.6},
}
"""Config fields by name: every placement, plain and Llama-like, and every other option."""


def tiny_decoder(name: str, seed: int = 0, **overrides: Any) -> Any:
    """A fresh random model of a variant, float32, in eval mode."""
    config = DecoderConfig(**{**SMALL, **VARIANTS[name], **overrides})
    return randomise(DecoderForCausalLM(config), seed)


def randomise(model: DecoderForCausalLM, seed: int) -> DecoderForCausalLM:
    """Redraw every parameter in place: gains and learned factors around their initial values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            owner, _, leaf = name.rpartition(".")
            module = model.get_submodule(owner)
            if is_norm(module):
                parameter.copy_((leaf != "bias") + 0.3 * noise)
            elif isinstance(module, LearnedScale):
                parameter.mul_(1 + 0.3 * noise)
            elif isinstance(module, nn.Embedding):
                parameter.copy_(0.2 + 0.5 * noise)
            elif parameter.ndim == 2 and parameter.shape[1] > 1:
                parameter.copy_(noise * (1.5 / parameter.shape[1] ** 0.5))
            elif parameter.ndim == 2:
                parameter.copy_(1.5 + 0.3 * noise)  # the lengths of weight normalization
            else:
                parameter.copy_(0.1 * noise + 0.1 * (leaf == "slope"))
    model.after_step()
    return model.eval()


def tokens(batch: int = 2, length: int = 9, seed: int = 3) -> Tensor:
    """Random token ids, none of them the BOS."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (batch, length), generator=generator)
