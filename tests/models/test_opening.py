"""Each opener gives the model that was saved, verified, and touches nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from normlens.errors import LoadError, ModelNotFound, NotApplicable, UsageError
from normlens.hooks import hook_count
from normlens.models import Lens, open_model
from normlens.models.export import write_model
from normlens.models.listing import bundled_directories
from normlens.norms import NormKind
from tests.tiny import EPS, tiny_fixed_scale, tiny_gpt2, tiny_llama, tokenizer

IDS = torch.tensor([[0, 17, 255, 4000, 9, 17], [0, 5, 6, 7, 8, 4095]])


def logits(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        return model(input_ids=IDS).logits


def require_verified(lens: Lens, kind: NormKind) -> None:
    assert [site.label for site in lens.sites] == [
        "0.pre_attn",
        "0.pre_mlp",
        "1.pre_attn",
        "1.pre_mlp",
        "final",
    ]
    assert {site.spec.kind for site in lens.sites} == {kind}
    assert all(check.passed for check in lens.verification)
    assert hook_count(lens.model) == 0
    assert not lens.model.training
    assert not any(p.requires_grad for p in lens.model.parameters())


def test_local_gpt2(gpt2_directory: Path) -> None:
    lens = open_model(gpt2_directory)
    require_verified(lens, NormKind.LAYER_NORM)
    assert {site.spec.eps for site in lens.sites} == {EPS}
    assert lens.sites[0].feeds == ("transformer.h.0.attn.c_attn",)
    assert lens.sites[-1].feeds == ("lm_head",)
    assert lens.identity.name == "tiny-gpt2"
    assert lens.placement.dtype == "float32"
    assert torch.equal(logits(lens.model), logits(tiny_gpt2(1)))


def test_local_llama(llama_directory: Path) -> None:
    lens = open_model(str(llama_directory))
    require_verified(lens, NormKind.RMS_NORM)
    assert {site.spec.eps for site in lens.sites} == {EPS}
    assert not lens.sites[0].spec.centred
    assert lens.sites[1].feeds == ("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj")
    assert torch.equal(logits(lens.model), logits(tiny_llama(1)))


def test_local_fixed_scale(fixed_scale_directory: Path) -> None:
    lens = open_model(fixed_scale_directory)
    require_verified(lens, NormKind.FIXED_SCALE)
    original = tiny_fixed_scale(1)
    for site in lens.sites:
        assert site.spec.fixed_scale == original.get_submodule(site.path).scale.item()
        assert not site.spec.eps_encoded
    assert torch.equal(logits(lens.model), logits(original))
    assert lens.lineage.ancestor == "tiny-gpt2"
    assert lens.lineage.ancestor_sha256 == "ab12"
    assert lens.identity.licence == "Apache-2.0"


@pytest.mark.parametrize("build", [tiny_gpt2, tiny_llama, tiny_fixed_scale])
def test_half_precision_storage_keeps_norms_exact(build, tmp_path: Path) -> None:
    original = build(3)
    write_model(original, tokenizer(), tmp_path / "half")
    lens = open_model(tmp_path / "half")
    for name, value in lens.model.state_dict().items():
        exact = "ln_" in name or "norm" in name
        assert torch.equal(value, original.state_dict()[name]) == exact, name


def test_a_norm_that_no_longer_centres_is_written_as_it_is(tmp_path: Path) -> None:
    model = tiny_fixed_scale(3)
    centred = logits(model)
    model.transformer.ln_f.centred = False
    expected = logits(model)
    assert not torch.allclose(expected, centred, atol=1e-2)
    write_model(model, tokenizer(), tmp_path / "uncentred", storage=torch.float32)
    lens = open_model(tmp_path / "uncentred")
    assert torch.equal(logits(lens.model), expected)
    assert [site.spec.centred for site in lens.sites] == [True, True, True, True, False]


def test_what_no_spec_describes_is_not_written(tmp_path: Path) -> None:
    model = tiny_fixed_scale(3)
    model.transformer.ln_f = torch.nn.GroupNorm(1, 32)
    with pytest.raises(NotApplicable, match=r"transformer\.ln_f is a GroupNorm"):
        write_model(model, tokenizer(), tmp_path / "unknown")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_every_dtype_verifies(dtype: str, gpt2_directory: Path, llama_directory: Path) -> None:
    for path in (gpt2_directory, llama_directory):
        lens = open_model(path, dtype=dtype)
        assert all(check.passed for check in lens.verification)
        assert lens.placement.dtype == dtype


def test_casting_in_memory_equals_loading_in_that_dtype(llama_directory: Path) -> None:
    loaded = open_model(llama_directory, dtype="bfloat16")
    cast = open_model(tiny_llama(1), tokenizer=None, dtype="bfloat16")
    assert loaded.identity.weights_sha256 == cast.identity.weights_sha256
    assert torch.equal(logits(loaded.model), logits(cast.model))


@pytest.mark.parametrize("build", [tiny_gpt2, tiny_llama, tiny_fixed_scale])
def test_a_model_in_memory_is_left_untouched(build, tmp_path: Path) -> None:
    model = build(2)
    model.train()
    model.set_attn_implementation("eager")
    model.config.name_or_path = "mine"
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modules = dict(model.named_modules())
    config = model.config.to_dict()

    lens = open_model(model, tokenizer=tokenizer(), dtype="float64")

    assert lens.model is not model
    assert lens.identity.name == "mine"
    assert lens.model.config._attn_implementation == "sdpa"
    assert model.config._attn_implementation == "eager"
    assert model.config.to_dict() == config
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert hook_count(model) == 0
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(dict(model.named_modules())[name] is module for name, module in modules.items())
    model.save_pretrained(tmp_path / "again")


def test_a_model_in_memory_shares_its_weights() -> None:
    model = tiny_gpt2(2)
    lens = open_model(model, tokenizer=None)
    assert lens.tokenizer is None
    shared = dict(lens.model.named_parameters())
    for name, parameter in model.named_parameters():
        assert shared[name].data_ptr() == parameter.data_ptr()
    assert lens.model.lm_head.weight is lens.model.transformer.wte.weight


def test_a_model_in_memory_needs_a_word_on_its_tokenizer() -> None:
    with pytest.raises(UsageError, match="tokenizer="):
        open_model(tiny_gpt2())


def test_hooks_of_the_caller_are_refused() -> None:
    model = tiny_gpt2()
    model.transformer.h[1].mlp.register_forward_hook(lambda *_: None)
    with pytest.raises(LoadError, match=r"transformer\.h\.1\.mlp"):
        open_model(model, tokenizer=None)


def test_recorders_of_transformers_are_not_hooks_of_the_caller() -> None:
    model = tiny_gpt2()
    model(input_ids=IDS, output_hidden_states=True)
    installed = hook_count(model)
    assert installed > 0
    lens = open_model(model, tokenizer=None)
    assert hook_count(lens.model) == 0
    assert hook_count(model) == installed
    assert len(lens.model(input_ids=IDS, output_hidden_states=True).hidden_states) == 3


def test_a_removed_norm_is_the_identity() -> None:
    model = tiny_gpt2()
    model.transformer.h[1].ln_2 = torch.nn.Identity()
    lens = open_model(model, tokenizer=None)
    kinds = [site.spec.kind for site in lens.sites]
    assert kinds.count(NormKind.IDENTITY) == 1
    assert kinds[3] is NormKind.IDENTITY
    assert lens.verification[3].residual == 0


def test_name_is_what_the_caller_says(gpt2_directory: Path) -> None:
    assert open_model(gpt2_directory, name="A").identity.name == "A"


def test_tokenizer_of_the_caller_wins(gpt2_directory: Path) -> None:
    mine = tokenizer()
    assert open_model(gpt2_directory, tokenizer=mine).tokenizer is mine
    assert open_model(gpt2_directory, tokenizer=None).tokenizer is None


def test_digest_depends_on_weights_alone(gpt2_directory: Path) -> None:
    opened = open_model(gpt2_directory)
    again = open_model(tiny_gpt2(1), tokenizer=None)
    other = open_model(tiny_gpt2(2), tokenizer=None)
    assert opened.identity.weights_sha256 == again.identity.weights_sha256
    assert opened.identity.config_sha256 == again.identity.config_sha256
    assert opened.identity.weights_sha256 != other.identity.weights_sha256
    assert opened.identity.config_sha256 == other.identity.config_sha256


def test_opening_draws_no_random_numbers(gpt2_directory: Path, fixed_scale_directory: Path) -> None:
    state = torch.get_rng_state()
    open_model(gpt2_directory)
    open_model(fixed_scale_directory)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.fixture
def hub_cache(
    tmp_path: Path, gpt2_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, str]:
    """A hub cache that holds ``owner/tiny`` at one commit; the network is off."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--owner--tiny"
    shutil.copytree(gpt2_directory, repository / "snapshots" / commit)
    (repository / "snapshots" / commit / "README.md").write_text("---\nlicense: mit\n---\n# tiny\n")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub", commit


def test_hub_id(hub_cache: tuple[Path, str]) -> None:
    lens = open_model("owner/tiny")
    require_verified(lens, NormKind.LAYER_NORM)
    assert lens.identity.source == "hub:owner/tiny"
    assert lens.identity.revision == hub_cache[1]
    assert lens.identity.licence == "mit"


def test_unreachable_hub_id(hub_cache: tuple[Path, str]) -> None:
    with pytest.raises(ModelNotFound, match=r"owner/other.*cannot be reached"):
        open_model("owner/other")


def test_a_missing_local_directory_never_asks_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("normlens.models.openers.hub.snapshot_download", forbidden)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for source in ("models/tiny", "./tiny", "/no/such/model", "unheard-of"):
        with pytest.raises(ModelNotFound):
            open_model(source)
    with pytest.raises(AssertionError, match="asked"):
        open_model("owner/name")


KINDS_OF_SCHEMES = {
    "dyt": {NormKind.DYT},
    "none-gelu": {NormKind.IDENTITY, NormKind.LAYER_NORM},
    "none-relu": {NormKind.IDENTITY, NormKind.LAYER_NORM},
    "rms": {NormKind.RMS_NORM},
}


@pytest.mark.parametrize("id_", sorted(bundled_directories()))
def test_bundled_models_verify(id_: str) -> None:
    lens = open_model(id_)
    assert all(check.passed for check in lens.verification)
    assert lens.identity.source == f"bundled:{id_}"
    assert lens.tokenizer is not None
    expected = KINDS_OF_SCHEMES.get(
        id_, {NormKind.FIXED_SCALE if "lnfree" in id_ else NormKind.LAYER_NORM}
    )
    assert {site.spec.kind for site in lens.sites} == expected
