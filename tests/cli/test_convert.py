"""``normlens convert``: the table, what is written, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from normlens.cli.app import run_command
from normlens.models import Lens, open_model, tokenizer_of
from normlens.models.export import write_model
from normlens.norms import NormKind
from normlens.text import Sequences, load_corpus
from tests.cli.pages import pages
from tests.models.edits.conversions import error
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tokenizer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_model(tiny_gpt2(1), tokenizer(), root / "ln", storage=torch.float32)
    write_model(tiny_fixed_scale(1), tokenizer(), root / "lnfree", storage=torch.float32)
    return root


def run(*arguments: str | Path) -> int:
    return run_command(["convert", *map(str, arguments)])


def fails(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


def test_edits_are_done_in_order_and_saved(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(models / "ln", "--to", "rms", "rotate", "--seed", "4", "--out", out) == 0
    printed = capsys.readouterr().out
    for word in ("rms", "rotate=4", "saved in float32", "1e-05", "yes", str(out)):
        assert word in printed
    again = open_model(out)
    assert again.tokenizer is not None
    assert {site.spec.kind for site in again.sites} == {NormKind.RMS_NORM}
    assert error(open_model(models / "ln"), again) <= 1e-5
    assert "exists already" in fails(capsys, models / "ln", "--to", "fold", "--out", out)
    assert run(models / "ln", "--to", "fold", "--out", out, "--force") == 0
    assert {site.spec.kind for site in open_model(out).sites} == {NormKind.LAYER_NORM}


def test_without_out_only_the_table(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(models.rglob("*"))
    to = ["freeze=mean@pre_mlp", "freeze=apart@0.pre_attn", "kind=dyt:0.4@1.pre_attn", "fold"]
    text = ["--text", pages(tmp_path), "--sequences", "4", "--context", "16"]
    assert run(models / "ln", "--to", *to, *text, "--json") == 0
    checks = json.loads(capsys.readouterr().out)
    assert [check["exact"] for check in checks] == [False, False, False, True]
    assert [check["tolerance"] is None for check in checks] == [True, True, True, False]
    assert checks[2]["edit"] == "kind=dyt:0.4@1.pre_attn"
    assert sorted(models.rglob("*")) == before


def test_sites_of_the_command_are_those_of_edits_that_name_none(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ["--to", "freeze=2", "kind=rms_norm@final", "--sites", "0"]
    assert run(models / "ln", *to, "--json") == 0
    names = [check["edit"] for check in json.loads(capsys.readouterr().out)]
    assert names == ["freeze=2.0@0", "kind=rms_norm@final"]


def test_the_public_format_there_and_back(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eps, clean, folded = (tmp_path / name for name in ("eps", "clean", "folded"))
    assert run(models / "lnfree", "--to", "eps", "--out", eps) == 0
    assert json.loads((eps / "config.json").read_text())["layer_norm_epsilon"] == 1e12
    assert run(eps, "--to", "clean", "--out", clean) == 0
    assert run(eps, "--to", "fold", "--out", folded) == 0
    capsys.readouterr()
    lens = open_model(models / "lnfree")
    assert all(error(lens, open_model(path)) <= 1e-5 for path in (eps, clean, folded))
    assert {site.spec.kind for site in open_model(folded).sites} == {NormKind.IDENTITY}


def losses(lens: Lens, corpus: Sequences) -> Tensor:
    """Loss of every target, nats."""
    with torch.inference_mode():
        logits = lens.model(input_ids=corpus.ids, use_cache=False).logits.double()
    losses = functional.cross_entropy(logits[:, :-1].mT, corpus.ids[:, 1:], reduction="none")
    return losses[torch.arange(1, corpus.ids.shape[1]) < corpus.lengths[:, None]]


@pytest.mark.parametrize("kind", [NormKind.DYT, NormKind.ELN], ids=str)
def test_fitted_norms_are_saved_and_cost_what_is_printed(
    kind: NormKind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, text = tmp_path / "out", pages(tmp_path)
    given = ["--text", text, "--sequences", "8", "--context", "32", "--storage", "float32"]
    assert run("books-ln", "--to", kind.value, *given, "--out", out) == 0
    printed = " ".join(capsys.readouterr().out.split())
    original, again = open_model("books-ln"), open_model(out)
    assert {site.spec.kind for site in again.sites} == {kind}
    alone = re.search(r"one alone: median KL (\S+) nats/token, largest (\S+) at (\S+)", printed)
    assert alone is not None, printed
    assert 0 < float(alone[1]) < float(alone[2])
    assert alone[3] in {site.label for site in again.sites}
    together = re.search(
        rf"all {len(again.sites)} replaced: Δloss (\S+) nats/token \[(\S+), (\S+)\], "
        r"KL (\S+), n = (\d+) held-out targets",
        printed,
    )
    assert together is not None, printed
    change, low, high, kl = (float(number) for number in together.groups()[:4])
    corpus = load_corpus(str(text), tokenizer_of(original), context=32, sequences=8)
    held_out = corpus.select(torch.tensor([3, 7]))
    expected = losses(again, held_out) - losses(original, held_out)
    assert int(together[5]) == expected.numel()
    assert change == pytest.approx(expected.mean().item(), rel=1e-3)
    assert low <= change <= high and kl > 0


@pytest.mark.parametrize(
    ("to", "message"),
    [
        (("nonsense",), "no edit 'nonsense'; choose from"),
        (("rms=3",), "rms takes no value"),
        (("crms@0",), "changes the whole model"),
        (("kind",), "write kind=NAME with one of"),
        (("kind=batch_norm",), "write kind=NAME"),
        (("kind=dyt:x",), "give a number"),
        (("freeze=often",), "give mean, apart, position or a number"),
        (("rotate=-1",), "a seed is a whole number"),
        (("fold@",), "not complete"),
        (("rotate",), "convert to rms first"),
        (("fold@0.q",), "names no norm"),
        (("clean",), "no eps-encoded norm"),
        (("rms", "rms"), "has RMSNorm already"),
        ((), "--to"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    to: tuple[str, ...],
    message: str,
) -> None:
    steps = ["--to", *to] if to else []
    assert message in fails(capsys, models / "ln", *steps, "--out", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
