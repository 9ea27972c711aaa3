"""One tiny random model per architecture: every parameter random, every constant unusual.

Two layers of width 32 with four heads, and the vocabulary of :func:`tests.tiny.tokenizer`.
Constants that a config may set (multipliers, soft caps, windows, rotary fractions) differ
from their defaults, so that a reading which overlooks one gives other numbers. Each call
makes a fresh model, in float32 and eval mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedModel,
)

from tests.decoder.tiny_decoders import LLAMA_LIKE as DECODER_LIKE_LLAMA
from tests.decoder.tiny_decoders import RMS_NORM, tiny_decoder
from tests.tiny import EPS, VOCABULARY, randomise

WIDTH, HEADS, HEAD_WIDTH, POSITIONS = 32, 4, 8, 64

LLAMA_LIKE: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
}
ENCODER: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": EPS,
}
RMS = {**LLAMA_LIKE, "rms_norm_eps": EPS}
HEAD_DIM = {"head_dim": HEAD_WIDTH}
UNTIED = {"tie_word_embeddings": False}
ALTERNATING = ["sliding_attention", "full_attention"]
NEOX: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
    "layer_norm_eps": EPS,
}
OPT: dict[str, Any] = {
    "hidden_size": WIDTH,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
    "dropout": 0.0,
}
FALCON: dict[str, Any] = {
    "hidden_size": WIDTH,
    "ffn_hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
    "layer_norm_epsilon": EPS,
    "alibi": False,
    "bias": True,
}


def rope(theta: float = 500.0, fraction: float | None = None) -> dict[str, Any]:
    """Rotary parameters unlike every default."""
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    return parameters if fraction is None else {**parameters, "partial_rotary_factor": fraction}


@dataclass(frozen=True)
class Tiny:
    """Makes one model from its config; a new one at each call.

    Attributes:
        model_type: ``config.model_type``.
        fields: config fields beside the vocabulary and the token ids.
        auto: the Auto class whose head the model has.
        eps: put into every norm module where no config field sets it.
    """

    model_type: str
    fields: dict[str, Any]
    auto: Any = AutoModelForCausalLM
    eps: float | None = None

    def __call__(self, seed: int = 0) -> PreTrainedModel:
        known = AutoConfig.for_model(self.model_type).to_dict()
        unknown = sorted(self.fields.keys() - known.keys())
        assert not unknown, f"{self.model_type} has no config field {unknown}"
        ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
        config = AutoConfig.for_model(self.model_type, vocab_size=VOCABULARY, **ids, **self.fields)
        model = randomise(self.auto.from_config(config), seed)
        for module in model.modules():
            if self.eps is not None and isinstance(module, nn.LayerNorm):
                module.eps = self.eps
        return model


ARCHITECTURES: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2": Tiny(
        "gpt2",
        {
            "n_positions": POSITIONS,
            "n_embd": WIDTH,
            "n_layer": 2,
            "n_head": HEADS,
            "layer_norm_epsilon": EPS,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
    ),
    "gptj": Tiny(
        "gptj",
        {
            "n_positions": POSITIONS,
            "n_embd": WIDTH,
            "n_layer": 2,
            "n_head": HEADS,
            "rotary_dim": 4,
            "layer_norm_epsilon": EPS,
        },
    ),
    "gpt-neox": Tiny(
        "gpt_neox", {**NEOX, "use_parallel_residual": True, "rope_parameters": rope(500.0, 0.5)}
    ),
    "gpt-neox-sequential": Tiny(
        "gpt_neox", {**NEOX, "use_parallel_residual": False, "rope_parameters": rope(500.0, 0.5)}
    ),
    "opt": Tiny("opt", OPT, eps=EPS),
    "opt-post": Tiny(
        "opt", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 24}, eps=EPS
    ),
    "llama": Tiny("llama", {**RMS, **UNTIED, "rope_parameters": rope()}),
    "mistral": Tiny("mistral", {**RMS, **HEAD_DIM, "sliding_window": 6}),
    "qwen2": Tiny("qwen2", {**RMS, "rope_parameters": rope()}),
    "qwen3": Tiny("qwen3", {**RMS, **HEAD_DIM, "rope_parameters": rope()}),
    "gemma": Tiny("gemma", {**RMS, **HEAD_DIM}),
    "gemma2": Tiny(
        "gemma2",
        {
            **RMS,
            **HEAD_DIM,
            "query_pre_attn_scalar": 12,
            "sliding_window": 6,
            "layer_types": ALTERNATING,
            "final_logit_softcapping": 3.0,
            "attn_logit_softcapping": 2.0,
        },
    ),
    "gemma3": Tiny(
        "gemma3_text",
        {
            **RMS,
            **HEAD_DIM,
            "query_pre_attn_scalar": 12,
            "sliding_window": 6,
            "layer_types": ALTERNATING,
            "rope_parameters": {
                "sliding_attention": rope(100.0),
                "full_attention": rope(900.0),
            },
        },
    ),
    "phi": Tiny(
        "phi",
        {**LLAMA_LIKE, "layer_norm_eps": EPS, "rope_parameters": rope(500.0, 0.5)},
    ),
    "phi-qk": Tiny(
        "phi",
        {
            **LLAMA_LIKE,
            "layer_norm_eps": EPS,
            "rope_parameters": rope(500.0, 0.5),
            "qk_layernorm": True,
        },
    ),
    "phi3": Tiny("phi3", {**RMS, "rope_parameters": rope(500.0), "sliding_window": 6}),
    "olmo": Tiny("olmo", {**LLAMA_LIKE, "clip_qkv": 1.5}),
    "olmo2": Tiny("olmo2", RMS),
    "olmo3": Tiny("olmo3", {**RMS, "sliding_window": 6, "layer_types": ALTERNATING}),
    "granite": Tiny(
        "granite",
        {
            **RMS,
            **UNTIED,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.5,
        },
    ),
    "cohere": Tiny(
        "cohere",
        {**LLAMA_LIKE, "layer_norm_eps": EPS, "logit_scale": 0.3, "use_qk_norm": True},
    ),
    "cohere-plain": Tiny(
        "cohere",
        {**LLAMA_LIKE, "layer_norm_eps": EPS, "logit_scale": 0.3, "use_qk_norm": False},
    ),
    "cohere2": Tiny(
        "cohere2",
        {
            **LLAMA_LIKE,
            "layer_norm_eps": EPS,
            "logit_scale": 0.3,
            "sliding_window": 6,
            "layer_types": ALTERNATING,
        },
    ),
    "stablelm": Tiny(
        "stablelm",
        {
            **LLAMA_LIKE,
            "layer_norm_eps": EPS,
            "use_qkv_bias": True,
            "rope_parameters": rope(500.0, 0.5),
        },
    ),
    "stablelm-qk": Tiny(
        "stablelm",
        {
            **LLAMA_LIKE,
            "layer_norm_eps": EPS,
            "qk_layernorm": True,
            "use_parallel_residual": True,
            "rope_parameters": rope(500.0, 0.5),
        },
    ),
    "nemotron": Tiny(
        "nemotron",
        {**LLAMA_LIKE, **HEAD_DIM, "norm_eps": EPS, "rope_parameters": rope(500.0, 0.5)},
    ),
    "bloom": Tiny(
        "bloom", {"hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS, "layer_norm_epsilon": EPS}
    ),
    "falcon": Tiny("falcon", {**FALCON, "multi_query": True, "parallel_attn": True}),
    "falcon-new": Tiny(
        "falcon",
        {
            **FALCON,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 2,
        },
    ),
    "falcon-sequential": Tiny("falcon", {**FALCON, "multi_query": False, "parallel_attn": False}),
    "starcoder2": Tiny("starcoder2", {**LLAMA_LIKE, "norm_epsilon": EPS, "sliding_window": 6}),
    "mpt": Tiny(
        "mpt",
        {
            "d_model": WIDTH,
            "n_heads": HEADS,
            "n_layers": 2,
            "expansion_ratio": 2,
            "max_seq_len": POSITIONS,
            "layer_norm_epsilon": EPS,
        },
    ),
    "glm4": Tiny("glm4", {**RMS, **HEAD_DIM, "rope_parameters": rope(500.0, 0.5)}),
    "bert": Tiny("bert", ENCODER, AutoModelForMaskedLM),
    "bert-encoder": Tiny("bert", ENCODER, AutoModel),
    "decoder": partial(tiny_decoder, "pre"),
    "decoder-sandwich-qk": partial(
        tiny_decoder, "sandwich", norm=RMS_NORM, qk_norm=RMS_NORM, **DECODER_LIKE_LLAMA
    ),
    "decoder-post": partial(tiny_decoder, "post"),
    "decoder-hybrid": partial(tiny_decoder, "hybrid"),
    "decoder-every-linear": partial(tiny_decoder, "every_linear", branch_scale=0.6),
    "decoder-ngpt": partial(tiny_decoder, "ngpt", norm=RMS_NORM, qk_norm=RMS_NORM),
}
"""A maker per architecture; some families come in several layouts."""
