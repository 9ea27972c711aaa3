"""What a trained model looks like on disk, and who may load it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, PreTrainedModel

from normlens.errors import OutputError
from normlens.models.export import write_model
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tokenizer

IDS = torch.randint(0, 4096, (2, 9), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def logits(model: PreTrainedModel) -> Tensor:
    return model.eval()(input_ids=IDS).logits


def rounded(model: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """The model with everything but its norms rounded through float16."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".ln_" not in name:
                parameter.copy_(parameter.half())
    return model


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_fixed_scale])
def test_weights_are_float16_and_norms_float32(tmp_path: Path, make) -> None:
    write_model(make(), tokenizer(), tmp_path / "model")
    with safe_open(tmp_path / "model" / "model.safetensors", framework="pt") as file:
        # safe_open gives no mapping: it cannot be iterated over.
        dtypes = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 - no mapping
    norms = {name for name in dtypes if ".ln_" in name}
    assert {dtypes[name] for name in norms} == {torch.float32}
    assert {dtypes[name] for name in set(dtypes) - norms} == {torch.float16}
    assert "lm_head.weight" not in dtypes
    assert ("transformer.ln_f.scale" in dtypes) == (make is tiny_fixed_scale)


def test_plain_transformers_loads_a_layer_norm_model(tmp_path: Path) -> None:
    model = tiny_gpt2()
    write_model(model, tokenizer(), tmp_path / "model")
    loaded, info = GPT2LMHeadModel.from_pretrained(
        tmp_path / "model", dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.config.layer_norm_epsilon == model.config.layer_norm_epsilon
    unrounded = logits(model)
    assert torch.equal(logits(loaded), logits(rounded(model)))
    assert not torch.equal(logits(loaded), unrounded)


def test_plain_transformers_refuses_a_scale_free_model(tmp_path: Path) -> None:
    write_model(tiny_fixed_scale(), tokenizer(), tmp_path / "model")
    with pytest.raises(ValueError, match="normlens-gpt2"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "model")


def test_an_existing_directory_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    write_model(tiny_gpt2(0), tokenizer(), tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    with pytest.raises(OutputError, match="exists already"):
        write_model(tiny_gpt2(1), tokenizer(), tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    write_model(tiny_gpt2(1), tokenizer(), tmp_path / "model", replace=True)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() != before
