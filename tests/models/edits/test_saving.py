"""Edited models on disk: opened as they were, refused by whoever does not know the layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, LlamaForCausalLM

from normlens.errors import CorruptModel, LoadError, NormlensError, NotApplicable, VerificationError
from normlens.models import Lens, open_model
from normlens.models.checkpoint import load_checkpoint_directory
from normlens.models.edits import (
    encode_eps,
    fold,
    freeze_scale,
    rotate,
    saving,
    swap_kind,
    to_crms,
    to_rms,
)
from normlens.models.edits.saving import save_lens
from normlens.models.edits.swap import why_no_swap
from normlens.norms import NormKind
from tests.kernels.harness import sequences_of
from tests.models.edits.conversions import IDS, error, logits
from tests.models.expected_architectures import opened
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tiny_llama

ROWS = sequences_of([[7, 8, 9, 10, 11], [4, 3, 2, 1, 9]])
NORMS, SHAPES = "normlens_norms", "normlens_parameters"
KINDS = [kind for kind in NormKind if why_no_swap(kind) is None]


def frozen(lens: Lens) -> Lens:
    return freeze_scale(freeze_scale(lens, "position", "0", sequences=ROWS), 2.0, "1")


MAKERS: dict[str, Callable[[Lens], Lens]] = {
    "fold": fold,
    "rms": to_rms,
    "crms": to_crms,
    "frozen": frozen,
    **{
        f"kind {kind.value}": lambda lens, kind=kind: swap_kind(lens, kind, "pre_mlp")
        for kind in KINDS
    },
}


@pytest.mark.parametrize("name", MAKERS)
def test_there_and_back(name: str, tmp_path: Path) -> None:
    lens = MAKERS[name](opened("gpt2"))
    check = save_lens(lens, tmp_path / "model")
    assert check.error <= 1e-7
    again = open_model(tmp_path / "model", tokenizer=None)
    assert [site.spec for site in again.sites] == [site.spec for site in lens.sites]
    assert error(lens, again) <= 1e-7
    assert again.lineage.ancestor == lens.identity.name
    card = json.loads((tmp_path / "model" / "normlens.json").read_text())
    assert card["edits"] == list(lens.edits)


def test_who_does_not_know_the_layout_refuses(tmp_path: Path) -> None:
    save_lens(to_rms(opened("gpt2")), tmp_path / "model")
    with pytest.raises(ValueError, match="normlens-gpt2"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    with pytest.raises(OSError, match=r"model\.safetensors"):
        GPT2LMHeadModel.from_pretrained(tmp_path / "model")


def test_a_model_that_its_class_builds_is_saved_plainly(tmp_path: Path) -> None:
    lens = open_model(tiny_llama(3), tokenizer=None)
    turned = rotate(fold(lens), seed=1)
    save_lens(turned, tmp_path / "model")
    plain = LlamaForCausalLM.from_pretrained(tmp_path / "model").eval()
    with torch.inference_mode():
        assert torch.equal(plain(input_ids=IDS).logits.double(), logits(turned))


def test_the_public_format_is_saved_plainly(tmp_path: Path) -> None:
    lens = open_model(tiny_fixed_scale(2), tokenizer=None)
    save_lens(encode_eps(lens), tmp_path / "model")
    plain = GPT2LMHeadModel.from_pretrained(tmp_path / "model").eval()
    assert plain.config.layer_norm_epsilon == 1e12
    with torch.inference_mode():
        assert (plain(input_ids=IDS).logits - logits(lens)).abs().max() < 1e-4


def test_an_eps_that_the_config_does_not_say_survives(tmp_path: Path) -> None:
    """OPT has no field for it, so its class would build another one."""
    lens = opened("opt")
    save_lens(lens, tmp_path / "model")
    assert {site.spec.eps for site in open_model(tmp_path / "model", tokenizer=None).sites} == {
        3e-4
    }


def test_a_module_that_is_no_norm_is_not_saved(tmp_path: Path) -> None:
    model = tiny_gpt2()
    model.transformer.h[0].mlp.act = nn.ReLU()
    with pytest.raises(NotApplicable, match=r"transformer\.h\.0\.mlp\.act is a ReLU"):
        save_lens(open_model(model, tokenizer=None), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_where_what_was_written_is_not_the_lens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(path: Path, dtype: torch.dtype):
        model = load_checkpoint_directory(path, dtype)
        model.get_input_embeddings().get_parameter("weight").data.mul_(1.01)
        return model

    monkeypatch.setattr(saving, "load_checkpoint_directory", damaged)
    with pytest.raises(VerificationError, match="nothing was written"):
        save_lens(to_rms(opened("gpt2")), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_narrower_storage_has_its_own_tolerance(tmp_path: Path) -> None:
    lens = to_rms(opened("gpt2"))
    check = save_lens(lens, tmp_path / "half", storage=torch.float16)
    assert 1e-6 < check.error <= check.tolerance == 5e-3
    with pytest.raises(NormlensError, match="exists already"):
        save_lens(lens, tmp_path / "half")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "crms"
    save_lens(freeze_scale(to_crms(opened("gpt2")), 2.0, "final"), path)
    return path


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (NORMS, {"transformer.ln_f": {"kind": "no_such", "width": 31}}, "field kind"),
        (NORMS, {"transformer.ln_f": {"kind": "rms_norm", "width": 0}}, "no width 0"),
        (NORMS, {"transformer.ln_f": {"kind": "rms_norm", "wdth": 3, "width": 31}}, "wdth"),
        (NORMS, {"transformer.ln_f": {"kind": "dyt", "width": 31}}, r"transformer\.ln_f cannot be"),
        (NORMS, {"transformer.h.0.mlp": {"kind": "identity", "width": 31}}, "which it is not"),
        (SHAPES, {"lm_head.weight": [4096, 30]}, r"lm_head\.weight of shape"),
        (SHAPES, {"lm_head.no_such": [3]}, r"lm_head\.no_such of shape"),
    ],
)
def test_a_damaged_description(
    saved: Path,
    copy_of: Callable[[Path], Path],
    field: str,
    value: dict[str, object],
    message: str,
) -> None:
    path = copy_of(saved)
    config = json.loads((path / "config.json").read_text())
    config[field].update(value)
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptModel, match=message):
        open_model(path, tokenizer=None)


def test_a_description_that_is_none(saved: Path, copy_of: Callable[[Path], Path]) -> None:
    path = copy_of(saved)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, NORMS: []}))
    with pytest.raises(CorruptModel, match="must be objects"):
        open_model(path, tokenizer=None)


def test_missing_weights(saved: Path, copy_of: Callable[[Path], Path]) -> None:
    path = copy_of(saved)
    (path / "normlens.safetensors").unlink()
    with pytest.raises(LoadError, match=r"has no normlens\.safetensors"):
        open_model(path, tokenizer=None)
