"""``untrained:``: the architecture of a source with weights drawn from a seed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from normlens.errors import CorruptModel, LoadError, ModelNotFound, UsageError
from normlens.models import Lens, open_model
from normlens.norms import NormKind
from tests.tiny import EPS, tokenizer


def digest(lens: Lens) -> str:
    return lens.identity.weights_sha256


def test_a_seed_is_a_model_and_another_seed_another(gpt2_directory: Path) -> None:
    source = f"untrained:{gpt2_directory}"
    zero, again, named, three = (open_model(source + s) for s in ("", "", "@0", "@3"))
    assert digest(zero) == digest(again) == digest(named)
    assert digest(three) != digest(zero)
    assert zero.identity.name == named.identity.name == "untrained:tiny-gpt2"
    assert three.identity.name == "untrained:tiny-gpt2@3"
    assert three.identity.source.endswith("@3")
    trained = open_model(gpt2_directory)
    assert digest(trained) != digest(zero)
    assert zero.identity.config_sha256 == trained.identity.config_sha256
    assert zero.lineage.ancestor is None


def test_it_is_the_architectures_own_initialisation(
    gpt2_directory: Path, llama_directory: Path
) -> None:
    lens = open_model(f"untrained:{gpt2_directory}")
    assert {site.spec.kind for site in lens.sites} == {NormKind.LAYER_NORM}
    assert {site.spec.eps for site in lens.sites} == {EPS}
    assert all(check.passed for check in lens.verification)
    state = lens.model.state_dict()
    assert bool((state["transformer.h.1.ln_1.weight"] == 1).all())
    assert bool((state["transformer.h.1.ln_1.bias"] == 0).all())
    spread = state["transformer.h.0.attn.c_attn.weight"].std()
    assert float(spread) == pytest.approx(0.02, rel=0.05)
    into_residual = state["transformer.h.0.mlp.c_proj.weight"].std()
    assert float(into_residual) == pytest.approx(0.02 / 4**0.5, rel=0.05)
    llama = open_model(f"untrained:{llama_directory}")
    assert {site.spec.kind for site in llama.sites} == {NormKind.RMS_NORM}


def test_weights_are_not_needed_and_a_dtype_only_rounds(
    gpt2_directory: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "tiny-gpt2"
    shutil.copytree(gpt2_directory, bare)
    (bare / "model.safetensors").unlink()
    lens = open_model(f"untrained:{bare}")
    assert digest(lens) == digest(open_model(f"untrained:{gpt2_directory}"))
    half = open_model(f"untrained:{bare}", dtype="bfloat16")
    assert half.placement.dtype == "bfloat16"
    for name, weight in lens.model.named_parameters():
        assert torch.equal(half.model.get_parameter(name), weight.bfloat16())


def test_the_callers_random_state_is_left_alone(gpt2_directory: Path) -> None:
    before = torch.random.get_rng_state()
    one = open_model(f"untrained:{gpt2_directory}")
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(99)
    assert digest(open_model(f"untrained:{gpt2_directory}")) == digest(one)


def test_a_bundled_model_keeps_its_tokenizer() -> None:
    lens = open_model("untrained:books-ln")
    assert lens.identity.name == "untrained:books-ln"
    assert lens.tokenizer is not None
    assert lens.tokenizer.get_vocab() == tokenizer().get_vocab()
    assert lens.model.config.n_layer == 6
    assert lens.identity.licence is None


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("untrained:books-lnfree", LoadError, "has fixed scales, which come from training"),
        ("untrained:no-such-model", ModelNotFound, r"type\(model\)\(model.config\)"),
        ("untrained:", ModelNotFound, "no model ''"),
        ("untrained:./nowhere", ModelNotFound, "does not exist"),
    ],
)
def test_what_has_no_untrained_model(source: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_model(source)


def test_a_damaged_config_and_a_revision_are_refused(gpt2_directory: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(gpt2_directory, bad)
    (bad / "config.json").write_text('{"model_type": "gpt2", "n_embd": 30, "n_head": 4}')
    with pytest.raises(CorruptModel, match="is invalid"):
        open_model(f"untrained:{bad}")
    with pytest.raises(UsageError, match="revision"):
        open_model(f"untrained:{gpt2_directory}", revision="main")
