"""What the decoder computes: against the naive oracle, and against models it equals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    GPT2LMHeadModel,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from normlens.decoder import DecoderForCausalLM
from tests.decoder.tiny_decoders import LLAMA_LIKE, RMS_NORM, VARIANTS, tiny_decoder, tokens
from tests.oracles.decoder import Oracle
from tests.tiny import EPS, VOCABULARY, randomise, tiny_gpt2, tiny_llama

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def run(model: nn.Module, ids: Tensor, **options: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, **options).logits


def oracle_of(model: DecoderForCausalLM, **changed: Any) -> Oracle:
    fields = model.config.to_dict()
    return Oracle(model.state_dict(), {**fields, **changed})


@every_variant
def test_logits_equal_the_naive_ones(variant: str) -> None:
    model = tiny_decoder(variant).double()
    ids = tokens(2, 6)
    logits = run(model, ids)
    assert logits.isfinite().all() and logits.std() > 0.01
    for row in range(2):
        expected = oracle_of(model).logits(ids[row].tolist())
        torch.testing.assert_close(logits[row], expected, rtol=1e-6, atol=1e-6)


WRONG: dict[str, dict[str, Any]] = {
    "pre": {"placement": "every_linear", "norm": {"kind": "identity"}},
    "deepnorm": {"placement": "post"},
    "layer-norm-scaling": {"norm": {"kind": "layer_norm", "eps": 3e-3, "gain": True, "bias": True}},
    "softplus": {"attention": "softmax"},
    "ngpt": {"gated": False, "attention_scale": 8**-0.5},
    "norm-free": {"activation": "relu"},
}
"""A config that the oracle must not confuse with the variant's own."""


@pytest.mark.parametrize("variant", WRONG)
def test_the_oracle_tells_schemes_apart(variant: str) -> None:
    model = tiny_decoder(variant).double()
    ids = tokens(1, 5)
    off = oracle_of(model, **WRONG[variant]).logits(ids[0].tolist()) - run(model, ids)[0]
    assert off.abs().max() > 1e-4


def state_of(model: PreTrainedModel, renamed: dict[str, str], layers: int = 2) -> dict[str, Tensor]:
    """The tensors of a model under the decoder's names; ``{}`` stands for the layer."""
    theirs = model.state_dict()
    state = {}
    for ours, name in renamed.items():
        for layer in range(layers if "{}" in ours else 1):
            for leaf in ("weight", "bias"):
                if f"{name.format(layer)}.{leaf}" in theirs:
                    value = theirs[f"{name.format(layer)}.{leaf}"]
                    state[f"{ours.format(layer)}.{leaf}"] = value
    return state


def with_state(variant: str, state: dict[str, Tensor], **fields: Any) -> Any:
    model = tiny_decoder(variant, seed=5, **fields)
    if model.config.tie_word_embeddings:
        state = {**state, "lm_head.weight": state["model.embed_tokens.weight"]}
    model.load_state_dict(state)
    return model


def test_pre_layer_norm_is_gpt2() -> None:
    theirs: GPT2LMHeadModel = tiny_gpt2(n_inner=48)
    block = "transformer.h.{}."
    state = state_of(
        theirs,
        {
            "model.embed_tokens": "transformer.wte",
            "model.embed_positions": "transformer.wpe",
            "model.final_norm": "transformer.ln_f",
            "model.layers.{}.attn.pre_norm": f"{block}ln_1",
            "model.layers.{}.mlp.pre_norm": f"{block}ln_2",
            "model.layers.{}.attn.body.o_proj": f"{block}attn.c_proj",
            "model.layers.{}.mlp.body.up_proj": f"{block}mlp.c_fc",
            "model.layers.{}.mlp.body.down_proj": f"{block}mlp.c_proj",
        },
    )
    for layer in range(2):
        fused = theirs.get_submodule(f"transformer.h.{layer}.attn.c_attn")
        for leaf in ("weight", "bias"):
            parts = fused.get_parameter(leaf).detach().split(32, dim=-1)
            for name, part in zip("qkv", parts, strict=True):
                state[f"model.layers.{layer}.attn.body.{name}_proj.{leaf}"] = part
    # GPT-2's Conv1D keeps its weights the other way round.
    turned = ("_proj.weight",)
    state = {n: v.T if n.endswith(turned) else v for n, v in state.items()}
    ours = with_state("pre", state, activation="gelu_new")
    torch.testing.assert_close(run(ours, tokens()), run(theirs, tokens()), rtol=0, atol=1e-5)


BLOCK = "model.layers.{}."
LLAMA_NAMES = {
    "model.embed_tokens": "model.embed_tokens",
    "model.final_norm": "model.norm",
    "lm_head": "lm_head",
    **{f"{BLOCK}attn.body.{p}_proj": f"{BLOCK}self_attn.{p}_proj" for p in "qkvo"},
    **{f"{BLOCK}mlp.body.{p}_proj": f"{BLOCK}mlp.{p}_proj" for p in ("gate", "up", "down")},
}


def test_pre_rms_norm_rotary_and_gated_is_llama() -> None:
    theirs: LlamaForCausalLM = tiny_llama(rope_parameters=LLAMA_LIKE["rope_parameters"])
    names = {
        **LLAMA_NAMES,
        "model.layers.{}.attn.pre_norm": "model.layers.{}.input_layernorm",
        "model.layers.{}.mlp.pre_norm": "model.layers.{}.post_attention_layernorm",
    }
    ours = with_state("pre-llama", state_of(theirs, names))
    torch.testing.assert_close(run(ours, tokens()), run(theirs, tokens()), rtol=0, atol=1e-5)
    masked = torch.ones_like(tokens())
    masked[1, :4] = 0
    positions = (masked.cumsum(-1) - 1).clamp(min=0)
    pair = [
        run(m, tokens(), attention_mask=masked, position_ids=positions)[masked.bool()]
        for m in (ours, theirs)
    ]
    torch.testing.assert_close(*pair, rtol=0, atol=1e-5)


def test_norms_after_branches_are_olmo2() -> None:
    """OLMo 2 has sandwich's outer norms without the inner ones."""
    config = Olmo2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=1, num_key_value_heads=1, rms_norm_eps=EPS, pad_token_id=None,
        rope_parameters=LLAMA_LIKE["rope_parameters"], max_position_embeddings=64,
    )  # fmt: skip
    theirs = randomise(Olmo2ForCausalLM(config), 0)
    names = {
        **LLAMA_NAMES,
        "model.layers.{}.attn.body.q_norm": "model.layers.{}.self_attn.q_norm",
        "model.layers.{}.attn.body.k_norm": "model.layers.{}.self_attn.k_norm",
        "model.layers.{}.attn.post_norm": "model.layers.{}.post_attention_layernorm",
        "model.layers.{}.mlp.post_norm": "model.layers.{}.post_feedforward_layernorm",
    }
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32}
    ours = tiny_decoder("sandwich-llama", qk_norm=RMS_NORM, **heads)
    for block in ours.model.layers:
        block.attn.pre_norm = block.mlp.pre_norm = None
    ours.load_state_dict(state_of(theirs, names))
    torch.testing.assert_close(run(ours, tokens()), run(theirs, tokens()), rtol=0, atol=1e-5)


def test_post_layer_norm_is_opt() -> None:
    config = OPTConfig(
        vocab_size=VOCABULARY, hidden_size=32, ffn_dim=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64, dropout=0.0, pad_token_id=None,
        do_layer_norm_before=False, word_embed_proj_dim=32, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    theirs = randomise(OPTForCausalLM(config), 0)
    block = "model.decoder.layers.{}."
    names = {
        "model.embed_tokens": "model.decoder.embed_tokens",
        "model.embed_positions": "model.decoder.embed_positions",
        "model.layers.{}.attn.exit_norm": f"{block}self_attn_layer_norm",
        "model.layers.{}.mlp.exit_norm": f"{block}final_layer_norm",
        "model.layers.{}.mlp.body.up_proj": f"{block}fc1",
        "model.layers.{}.mlp.body.down_proj": f"{block}fc2",
        "model.layers.{}.attn.body.o_proj": f"{block}self_attn.out_proj",
        **{f"model.layers.{{}}.attn.body.{p}_proj": f"{block}self_attn.{p}_proj" for p in "qkv"},
    }
    state = state_of(theirs, names)
    # OPT's first position is 2.
    state["model.embed_positions.weight"] = state["model.embed_positions.weight"][2:]
    eps = {"kind": "layer_norm", "eps": 1e-5, "gain": True, "bias": True}
    ours = with_state("post", state, norm=eps, activation="relu")
    torch.testing.assert_close(run(ours, tokens()), run(theirs, tokens()), rtol=0, atol=1e-5)
