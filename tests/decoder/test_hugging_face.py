"""The decoder as a Hugging Face model: saving, generating, padding, checkpointing, dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from normlens.decoder import DecoderConfig, DecoderForCausalLM, register
from tests.decoder.tiny_decoders import SMALL, VARIANTS, tiny_decoder, tokens

SOME = [v for v in VARIANTS if not v.endswith("-llama")] + ["pre-llama", "sdd-llama", "ngpt-llama"]
every_variant = pytest.mark.parametrize("variant", VARIANTS)
some_variants = pytest.mark.parametrize("variant", SOME)


def run(model: Any, ids: Tensor, **options: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, **options).logits


@every_variant
def test_saved_and_loaded_by_the_auto_classes(variant: str, tmp_path: Path) -> None:
    register()
    register()
    model = tiny_decoder(variant)
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).to_dict()["norm"] == model.config.norm
    auto: Any = AutoModelForCausalLM
    loaded, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert type(loaded) is DecoderForCausalLM
    assert loaded.config.final_norm == model.config.final_norm
    assert loaded.state_dict().keys() == model.state_dict().keys()
    if variant.startswith("ngpt"):
        torch.testing.assert_close(run(loaded, tokens()), run(model, tokens()))
    else:
        assert torch.equal(run(loaded, tokens()), run(model, tokens()))


@some_variants
def test_the_cache_changes_no_generated_token(variant: str) -> None:
    model = tiny_decoder(variant)
    ids = tokens(2, 6)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    out = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(out, model.generate(ids, attention_mask=mask, use_cache=False, **options))
    alone = model.generate(ids[1:, 3:], attention_mask=mask[1:, 3:], **options)
    assert torch.equal(out[1, 3:], alone[0])


@some_variants
def test_padding_and_the_future_are_unseen(variant: str) -> None:
    model = tiny_decoder(variant)
    ids = tokens(2, 8)
    plain = run(model, ids)
    mask = torch.ones_like(ids)
    mask[1, -3:] = 0
    padded = run(model, ids, attention_mask=mask)
    torch.testing.assert_close(padded[1, :5], plain[1, :5])
    torch.testing.assert_close(padded[0], plain[0])
    other = ids.clone()
    other[:, -1] += 1
    assert torch.equal(run(model, other)[:, :-1], plain[:, :-1])
    assert not torch.equal(run(model, other)[:, -1], plain[:, -1])


@some_variants
def test_eager_attention_computes_the_same_and_returns_weights(variant: str) -> None:
    model = tiny_decoder(variant)
    plain = run(model, tokens())
    model.set_attn_implementation("eager")
    out = model(input_ids=tokens(), output_attentions=True, output_hidden_states=True)
    assert (out.logits - plain).abs().max() < 1e-5 * plain.abs().max()
    assert len(out.hidden_states) == 3 and len(out.attentions) == 2
    sums = out.attentions[1].sum(-1)
    assert (sums - 1).abs().max() < 1e-5 or model.config.attention == "relu"
    assert out.attentions[1].triu(1).abs().max() == 0


@some_variants
def test_every_parameter_has_a_gradient_and_checkpointing_keeps_it(variant: str) -> None:
    model = tiny_decoder(variant).train()
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    for name, gradient in gradients.items():
        # Softmax and norms do not see a bias that all keys share.
        if not name.endswith("k_proj.bias"):
            assert gradient is not None and gradient.abs().max() > 0, name
    model.zero_grad()
    model.activation_checkpointing_enable()
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], msg=name)


@some_variants
def test_bfloat16_is_near_float32(variant: str) -> None:
    model = tiny_decoder(variant)
    wide = run(model, tokens())
    narrow = run(model.to(torch.bfloat16), tokens())
    assert narrow.dtype == torch.bfloat16
    assert (narrow.float() - wide).abs().max() < 0.1 * wide.abs().max()


def test_logits_to_keep_and_embeddings_as_input() -> None:
    model = tiny_decoder("pre")
    whole = run(model, tokens())
    assert torch.equal(run(model, tokens(), logits_to_keep=2), whole[:, -2:])
    embedded = model.get_input_embeddings()(tokens())
    with torch.no_grad():
        torch.testing.assert_close(model(inputs_embeds=embedded).logits, whole)
    with pytest.raises(ValueError, match="exactly one"):
        model()


def test_the_loss_is_the_mean_over_predicted_tokens() -> None:
    model = tiny_decoder("pre")
    ids = tokens()
    log_probs = run(model, ids)[:, :-1].double().log_softmax(-1)
    expected = -log_probs.gather(-1, ids[:, 1:, None]).mean()
    with torch.no_grad():
        assert model(input_ids=ids, labels=ids).loss.item() == pytest.approx(expected.item())


def test_a_model_is_built_without_memory() -> None:
    with torch.device("meta"):
        for variant in VARIANTS:
            model = DecoderForCausalLM(DecoderConfig(**{**SMALL, **VARIANTS[variant]}))
            assert all(p.is_meta for p in model.parameters())


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"placement": "above"}, "placement 'above' is unknown; choose one of pre, post"),
        ({"attention": "max"}, "attention 'max' is unknown"),
        ({"linear": "thin"}, "linear 'thin' is unknown"),
        ({"initialisation": "big"}, "initialisation 'big' is unknown"),
        ({"positions": "none"}, "positions 'none' is unknown"),
        ({"activation": "x"}, "activation 'x' is not known"),
        ({"hidden_size": 30}, "30 is not a multiple of num_attention_heads 4"),
        ({"norm": {"kind": "mean_norm"}}, "mean_norm"),
        ({"norm": {"kind": "layer_norm", "epsilon": 1e-5}}, "epsilon"),
        ({"placement": "depth_scaled_sandwich", "norm": {"kind": "identity"}}, "give it a gain"),
    ],
)
def test_what_cannot_be_built_is_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(Exception, match=what):
        DecoderConfig(**{**SMALL, **fields})
