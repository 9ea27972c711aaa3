"""Every unusable source is refused with one line that names the offender and a way out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from normlens.errors import CorruptModel, LoadError, ModelNotFound, NormlensError, UsageError
from normlens.models import open_model
from tests.tiny import tiny_gpt2, tokenizer

Copy = Callable[[Path], Path]


def refuse(error: type[NormlensError], match: str, source: object, **options: object) -> None:
    with pytest.raises(error, match=match) as raised:
        open_model(source, **options)  # pyright: ignore[reportArgumentType]
    assert type(raised.value) is error
    assert "\n" not in str(raised.value)


def edit_config(path: Path, **fields: object) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def edit_tensors(path: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = path / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def test_unknown_name_suggests_a_close_one() -> None:
    refuse(ModelNotFound, "no model 'smollm2-135': did you mean smollm2-135m", "smollm2-135")


def test_unknown_name_lists_the_known_ones() -> None:
    refuse(ModelNotFound, "known ids: .*smollm2-135m", "zzz")


def test_missing_directory(tmp_path: Path) -> None:
    refuse(ModelNotFound, "nowhere does not exist", tmp_path / "nowhere")


def test_a_file_is_not_a_directory(gpt2_directory: Path) -> None:
    refuse(ModelNotFound, "is a file", gpt2_directory / "model.safetensors")


def test_directory_without_a_config(tmp_path: Path) -> None:
    refuse(ModelNotFound, r"no config\.json", tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", "\x00\x01", "{}"])
def test_unreadable_config(text: str, gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    (path / "config.json").write_text(text)
    refuse(CorruptModel, r"config\.json", path)


def test_config_that_is_not_utf8(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    (path / "config.json").write_bytes(b'{"model_type": "\xff"}')
    refuse(CorruptModel, r"config\.json", path)


def test_impossible_config(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    edit_config(path, n_head=5)
    refuse(CorruptModel, "cannot be loaded", path)


def test_unsupported_architecture(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    edit_config(path, model_type="t5")
    refuse(LoadError, "'t5' is not supported; supported: gpt2, .*llama", path)


def test_remote_code_is_never_run(gpt2_directory: Path, copy_of: Copy, tmp_path: Path) -> None:
    path = copy_of(gpt2_directory)
    (path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    edit_config(path, model_type="evil", auto_map={"AutoModelForCausalLM": "evil.Evil"})
    refuse(LoadError, "not supported", path)
    edit_config(path, model_type="gpt2")
    assert open_model(path).sites
    assert not (tmp_path / "ran").exists()


def test_quantised_checkpoint(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    edit_config(path, quantization_config={"quant_method": "gptq"})
    refuse(LoadError, "quantised", path)


def test_pickled_weights(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    refuse(LoadError, r"pickled weights \(pytorch_model\.bin\).*safe_serialization", path)


def test_no_weights(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    (path / "model.safetensors").unlink()
    refuse(ModelNotFound, r"no model\.safetensors", path)


def test_missing_shard(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    (path / "model.safetensors").unlink()
    index = {"weight_map": {"transformer.wte.weight": "model-00001-of-00001.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    refuse(CorruptModel, "lacks model-00001-of-00001", path)


@pytest.mark.parametrize("keep", [0, 4, 1000, -1])
def test_truncated_weights(keep: int, gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refuse(CorruptModel, r"model\.safetensors is damaged", path)


def test_missing_tensor(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    edit_tensors(path, lambda tensors: tensors.pop("transformer.h.1.ln_2.bias"))
    refuse(CorruptModel, r"lacks tensor transformer\.h\.1\.ln_2\.bias", path)


def test_left_over_tensor(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    edit_config(path, n_layer=1)
    refuse(CorruptModel, r"has, unasked, tensor transformer\.h\.1\.attn\.c_attn\.weight", path)


def test_mismatched_shape(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    edit_config(path, n_positions=32)
    refuse(CorruptModel, r"wpe\.weight has shape \(64, 32\), the config asks for \(32, 32\)", path)


def test_nan_in_the_weights(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    edit_tensors(path, lambda tensors: tensors["transformer.h.1.ln_1.weight"].fill_(torch.nan))
    refuse(CorruptModel, r"tensor transformer\.h\.1\.ln_1\.weight holds NaN", path)


def test_overflow_while_running_names_the_first_site() -> None:
    model = tiny_gpt2()
    model.transformer.h[0].mlp.c_proj.weight.data.fill_(3e38)
    refuse(CorruptModel, r"the input of norm 1\.pre_attn", model, tokenizer=None)


def test_no_tokenizer(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    for file in path.glob("tokenizer*"):
        file.unlink()
    refuse(LoadError, "no tokenizer", path)
    assert open_model(path, tokenizer=None).sites


def test_damaged_tokenizer(gpt2_directory: Path, copy_of: Copy) -> None:
    path = copy_of(gpt2_directory)
    (path / "tokenizer.json").write_text("{")
    refuse(CorruptModel, "the tokenizer in .* cannot be read", path)


def test_tokenizer_of_another_model() -> None:
    model = tiny_gpt2(vocab_size=100)
    refuse(LoadError, "4096 tokens, the model embeds 100", model, tokenizer=tokenizer())


def test_damaged_card(fixed_scale_directory: Path, copy_of: Copy) -> None:
    path = copy_of(fixed_scale_directory)
    (path / "normlens.json").write_text("[")
    refuse(CorruptModel, r"normlens\.json", path)


def test_fixed_scale_without_its_list(fixed_scale_directory: Path, copy_of: Copy) -> None:
    path = copy_of(fixed_scale_directory)
    edit_config(path, normlens_fixed_scale=None)
    refuse(CorruptModel, "lacks the list normlens_fixed_scale", path)


def test_fixed_scale_without_a_scale(fixed_scale_directory: Path, copy_of: Copy) -> None:
    path = copy_of(fixed_scale_directory)
    edit_tensors(path, lambda tensors: tensors.pop("transformer.h.0.ln_2.scale"))
    refuse(CorruptModel, r"lacks tensor transformer\.h\.0\.ln_2\.scale", path)


def test_fixed_scale_that_is_not_positive(fixed_scale_directory: Path, copy_of: Copy) -> None:
    path = copy_of(fixed_scale_directory)
    edit_tensors(path, lambda tensors: tensors["transformer.ln_f.scale"].fill_(0))
    refuse(CorruptModel, r"transformer\.ln_f\.scale is not one positive", path)


def test_fixed_scale_that_is_no_norm(fixed_scale_directory: Path, copy_of: Copy) -> None:
    path = copy_of(fixed_scale_directory)
    edit_config(path, normlens_fixed_scale=["transformer.wte"])
    edit_tensors(path, lambda t: t.update({"transformer.wte.scale": torch.tensor(1.0)}))
    refuse(CorruptModel, r"transformer\.", path)


def test_scale_free_weights_under_a_plain_model_type(
    fixed_scale_directory: Path, copy_of: Copy
) -> None:
    path = copy_of(fixed_scale_directory)
    edit_config(path, model_type="gpt2")
    refuse(CorruptModel, r"has, unasked, tensor transformer\.h\.0\.ln_1\.scale", path)


@pytest.mark.parametrize("dtype", ["float8", "int64", ""])
def test_unknown_dtype(dtype: str, gpt2_directory: Path) -> None:
    refuse(UsageError, "unknown dtype", gpt2_directory, dtype=dtype)


@pytest.mark.parametrize("device", ["quantum", "cuda:99"])
def test_unusable_device(device: str, gpt2_directory: Path) -> None:
    refuse(UsageError, f"device '{device}' cannot be used", gpt2_directory, device=device)


def test_revision_of_a_local_model(gpt2_directory: Path) -> None:
    refuse(UsageError, "revision=", gpt2_directory, revision="main")
