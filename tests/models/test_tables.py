"""The table of sites and the list of models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from normlens.errors import NotApplicable, OutputError
from normlens.models import gain_and_bias, open_model, site_table, tokenizer_of
from normlens.models.cache import cache_directory
from normlens.models.listing import list_models
from normlens.models.metadata import Card, read_card
from normlens.resources import data_path
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tiny_llama, tokenizer


def test_site_table_of_a_layer_norm_model() -> None:
    model = tiny_gpt2(4)
    table = site_table(open_model(model, tokenizer=None))
    assert list(table.label) == ["0.pre_attn", "0.pre_mlp", "1.pre_attn", "1.pre_mlp", "final"]
    assert table.layer.isna().tolist() == [False, False, False, False, True]
    row = table.set_index("label").loc["1.pre_mlp"]
    norm = model.transformer.h[1].ln_2
    assert row.kind == "layer_norm"
    assert row.eps == norm.eps
    assert row.gain_min == pytest.approx(norm.weight.min().item())
    assert row.gain_median == pytest.approx(norm.weight.median().item())
    assert row.gain_max == pytest.approx(norm.weight.max().item())
    assert row.bias_rms == pytest.approx(norm.bias.square().mean().sqrt().item(), rel=1e-6)
    assert row.feeds == "transformer.h.1.mlp.c_fc"
    assert row.verified
    assert row[["fixed_scale"]].isna().all()


def test_site_table_leaves_out_what_a_norm_has_not() -> None:
    rms = site_table(open_model(tiny_llama(4), tokenizer=None))
    assert rms.bias_rms.isna().all()
    fixed = site_table(open_model(tiny_fixed_scale(4), tokenizer=None))
    assert fixed.eps.isna().all()
    assert fixed.fixed_scale.between(1.5, 3.5).all()
    model = tiny_gpt2(4)
    model.transformer.ln_f = torch.nn.Identity()
    assert site_table(open_model(model, tokenizer=None)).iloc[-1][["eps", "gain_min"]].isna().all()


def test_gain_and_bias_are_the_modules_own_in_float64() -> None:
    lens = open_model(tiny_gpt2(4), tokenizer=None)
    for site in lens.sites:
        gamma, beta = gain_and_bias(lens, site)
        assert gamma is not None and beta is not None
        assert gamma.dtype is beta.dtype is torch.float64
        assert torch.equal(gamma.float(), lens.module(site).get_parameter("weight"))
        assert torch.equal(beta.float(), lens.module(site).get_parameter("bias"))


def test_tokenizer_of_a_lens_without_one() -> None:
    model = tiny_gpt2()
    with pytest.raises(NotApplicable, match="without a tokenizer"):
        tokenizer_of(open_model(model, tokenizer=None))
    mine = tokenizer()
    assert tokenizer_of(open_model(model, tokenizer=mine)) is mine


def test_every_model_in_the_list_says_how_to_get_it() -> None:
    models = {entry.id: entry for entry in list_models()}
    bundled = {p.name for p in data_path("models").iterdir() if (p / "config.json").is_file()}
    assert set(models) == bundled | {"smollm2-135m", "gemma3-270m", "all-minilm-l6-v2"}
    for entry in models.values():
        assert bool(entry.hint) != entry.available
        assert entry.parameters > 0
        assert entry.description
        assert entry.licence


@pytest.mark.parametrize(
    ("id_", "kind"),
    [
        ("books-ln", "layer_norm"),
        ("books-lnfree", "fixed_scale"),
        ("rms", "rms_norm"),
        ("dyt", "dyt"),
        ("none-gelu", "identity, layer_norm"),
    ],
)
def test_the_list_says_the_kind_of_the_norms(id_: str, kind: str) -> None:
    entry = next(entry for entry in list_models() if entry.id == id_)
    lens = open_model(id_)
    assert entry.kind == kind
    assert set(kind.split(", ")) == {str(site.spec.kind) for site in lens.sites}


def test_list_reads_directories_in_both_layouts(
    tmp_path: Path,
    gpt2_directory: Path,
    fixed_scale_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "a").symlink_to(gpt2_directory)
    (tmp_path / "b").symlink_to(fixed_scale_directory)
    (tmp_path / "not-a-model").mkdir()
    monkeypatch.setattr("normlens.models.listing.data_path", lambda _: tmp_path)
    a, b, *_ = list_models()
    assert (a.id, a.kind, a.origin) == ("a", "layer_norm", "bundled")
    assert (b.id, b.kind, b.description) == ("b", "fixed_scale", "a test")
    stored = sum(p.numel() for p in tiny_gpt2(1).parameters())
    assert a.parameters == stored
    assert b.parameters == stored + 5


def test_the_list_needs_no_torch() -> None:
    code = (
        "import sys; from normlens.models import list_models; list_models(); "
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_card_of_a_directory_without_one(tmp_path: Path) -> None:
    assert read_card(tmp_path) == Card()
    (tmp_path / "README.md").write_text("---\nlicense: [unclosed\n---\n")
    assert read_card(tmp_path).licence is None


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="NORMLENS_CACHE"):
        cache_directory("models")
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "new"))
    assert cache_directory("models") == tmp_path / "new" / "models"
