"""The public scale-free format: recognised, converted exactly, refused where it cannot work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from normlens import tolerances
from normlens.errors import CorruptModel, LoadError, NotApplicable
from normlens.models import Lens, convert_eps_encoded, encode_eps, has_eps_encoded, open_model
from normlens.norms import FixedScale, NormKind
from tests.models.conftest import save_hugging_face
from tests.tiny import tiny_fixed_scale, tiny_gpt2

IDS = torch.tensor([[0, 17, 255, 4000, 9, 17], [0, 5, 6, 7, 8, 4095]])


def logits(lens: Lens) -> Tensor:
    with torch.inference_mode():
        return lens.model(input_ids=IDS).logits.double()


def difference(a: Lens, b: Lens) -> float:
    """Largest logit difference relative to the largest logit."""
    reference = logits(a)
    return ((logits(b) - reference).abs().max() / reference.abs().max()).item()


@pytest.fixture(scope="module")
def clean() -> Lens:
    return open_model(tiny_fixed_scale(1), tokenizer=None)


@pytest.fixture(scope="module")
def encoded_directory(clean: Lens, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The twin as transformers saves it: the published layout."""
    return save_hugging_face(encode_eps(clean).model, tmp_path_factory.mktemp("twin") / "twin")


def test_layout_is_the_published_one(encoded_directory: Path) -> None:
    config = json.loads((encoded_directory / "config.json").read_text())
    assert config["model_type"] == "gpt2"
    assert config["layer_norm_epsilon"] == 1e12


def test_is_recognised_as_fixed_scale(encoded_directory: Path, clean: Lens) -> None:
    lens = open_model(encoded_directory)
    for site, check in zip(lens.sites, lens.verification, strict=True):
        assert site.spec.kind is NormKind.FIXED_SCALE
        assert site.spec.eps_encoded
        assert site.spec.fixed_scale == 1e6
        assert check.passed
        assert isinstance(lens.module(site), nn.LayerNorm)
    assert difference(clean, lens) < tolerances.for_dtype("conversion_logits", "float32")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_conversion_keeps_the_logits(dtype: str, encoded_directory: Path) -> None:
    lens = open_model(encoded_directory, dtype=dtype)
    converted = convert_eps_encoded(lens)
    for site in converted.sites:
        assert site.spec.kind is NormKind.FIXED_SCALE
        assert not site.spec.eps_encoded
        assert site.spec.fixed_scale == 1
        assert isinstance(converted.module(site), FixedScale)
    # What is left in float64 is the format's own var / 2e12.
    tolerance = {"float32": 1e-5, "float64": 1e-10}[dtype]
    assert difference(lens, converted) < tolerance
    assert converted.edits == ("convert_eps_encoded",)


def test_conversion_shares_what_it_does_not_change(encoded_directory: Path) -> None:
    lens = open_model(encoded_directory)
    before = lens.model.state_dict()
    converted = convert_eps_encoded(lens)
    after = dict(converted.model.named_parameters())
    for name, parameter in lens.model.named_parameters():
        assert (after[name].data_ptr() == parameter.data_ptr()) == (".ln_" not in name), name
    assert all(torch.equal(before[name], value) for name, value in lens.model.state_dict().items())
    assert has_eps_encoded(lens)
    assert not has_eps_encoded(converted)


def test_convert_on_opening(encoded_directory: Path, gpt2_directory: Path) -> None:
    assert open_model(encoded_directory, convert=True).edits == ("convert_eps_encoded",)
    assert open_model(gpt2_directory, convert=True).edits == ()


def test_there_and_back(clean: Lens) -> None:
    twin = encode_eps(clean)
    assert difference(clean, twin) < 1e-5
    assert difference(clean, convert_eps_encoded(twin)) < 1e-5


def test_float16_is_refused_and_the_ways_out_work(encoded_directory: Path, clean: Lens) -> None:
    with pytest.raises(LoadError, match=r"0\.pre_attn.*overflows float16.*convert=True"):
        open_model(encoded_directory, dtype="float16")
    lens = open_model(encoded_directory, dtype="float16", convert=True)
    assert lens.placement.dtype == "float16"
    assert difference(clean, lens) < 1e-2
    brain = open_model(encoded_directory, dtype="bfloat16")
    assert all(check.passed for check in brain.verification)
    assert difference(clean, brain) < 0.1


def test_the_base_models_eps_is_refused(
    encoded_directory: Path, copy_of: Callable[[Path], Path]
) -> None:
    path = copy_of(encoded_directory)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "layer_norm_epsilon": 1e-5}))
    with pytest.raises(CorruptModel, match=r"0\.pre_attn.*median \|gain\|.*base model's eps"):
        open_model(path)


def test_what_that_refusal_prevents(clean: Lens) -> None:
    wrong = encode_eps(clean)
    for site in wrong.sites:
        module = wrong.module(site)
        assert isinstance(module, nn.LayerNorm)
        module.eps = 1e-5
    assert difference(clean, wrong) > 1e3


def test_live_weights_under_a_scale_free_config_are_refused() -> None:
    with pytest.raises(CorruptModel, match=r"0\.pre_attn.*ordinary gains"):
        open_model(tiny_gpt2(layer_norm_epsilon=1e12), tokenizer=None)


def test_eps_is_read_from_the_module_not_the_config() -> None:
    model = tiny_gpt2()
    model.transformer.ln_f.eps = 0.3
    lens = open_model(model, tokenizer=None)
    assert lens.sites[-1].spec.eps == 0.3
    assert lens.sites[-1].spec.kind is NormKind.LAYER_NORM
    assert lens.verification[-1].passed


def test_an_eps_that_dwarfs_small_activations_is_found() -> None:
    model = tiny_gpt2()
    model.transformer.wte.weight.data.mul_(1e-6)
    model.transformer.wpe.weight.data.mul_(1e-6)
    model.transformer.h[0].ln_1.eps = 1.0
    model.transformer.h[0].ln_1.weight.data.mul_(1e3)
    spec = open_model(model, tokenizer=None).sites[0].spec
    assert spec.kind is NormKind.FIXED_SCALE
    assert spec.eps_encoded
    assert spec.fixed_scale == 1


def test_only_what_has_the_form_is_converted(gpt2_directory: Path, clean: Lens) -> None:
    plain = open_model(gpt2_directory)
    with pytest.raises(NotApplicable, match="no eps-encoded norm"):
        convert_eps_encoded(plain)
    with pytest.raises(NotApplicable, match=r"0\.pre_attn .* layer_norm"):
        encode_eps(plain)
    half = open_model(tiny_fixed_scale(1), tokenizer=None, dtype="float16")
    with pytest.raises(NotApplicable, match="overflow float16"):
        encode_eps(half)
