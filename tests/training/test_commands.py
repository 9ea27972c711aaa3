"""``normlens train``, ``remove-norm`` and ``prepare-corpus`` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cyclopts import App

from normlens.cli import train
from normlens.errors import NormlensError, NotApplicable, UnknownName, UsageError
from normlens.models.export import write_model
from normlens.training.removal import removable_layers
from normlens.training.start import open_ancestor
from tests.tiny import tiny_gpt2, tiny_llama, tokenizer
from tests.training.small import excerpts

RECIPE = """
name = "mine"
purpose = "A test."
steps = 9
batch_size = 2
seed = 0
data_seed = 0

[architecture]
layers = 1
width = 8
heads = 2
context = 12
vocabulary = 4096

[optimizer]
lr = 1e-3
final_lr_fraction = 0.1
warmup_steps = 2
"""
SCHEDULE = """
[removal]
mlp = { start = 1, gap = 1 }
qk = { start = 2, gap = 1 }
v = { start = 3, gap = 1 }
final_step = 5
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_model(tiny_gpt2(), tokenizer(), root / "gpt")
    write_model(tiny_llama(), tokenizer(), root / "llama")
    return root


@pytest.fixture
def place(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe, a removal recipe, a text, and two models."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(RECIPE, encoding="utf-8")
    Path("removal.toml").write_text(RECIPE + SCHEDULE, encoding="utf-8")
    Path("text.txt").write_text(excerpts()[0][:3000], encoding="utf-8")
    for name in ("gpt", "llama"):
        Path(name).symlink_to(models / name)
    return tmp_path


def command(line: str) -> int:
    app = App(name="normlens", help_format="markdown", result_action="return_value")
    train.register(app)
    return app(line, exit_on_error=False, print_error=False)


def test_training_a_recipe_prints_where_the_model_is(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("train mine.toml --text text.txt --out run --steps 3 --held-out text.txt") == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["run/model"]
    assert "mine 3/3 loss" in printed.err
    card = json.loads(Path("run/model/normlens.json").read_text(encoding="utf-8"))
    assert card["command"] == "normlens train mine.toml --steps 3 --text FILES --out RUN"
    assert card["training_tokens"] == 3 * 2 * 12


def test_a_dry_run_prints_the_cost_and_the_schedule_and_writes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(place.rglob("*"))
    line = (
        "remove-norm gpt --text text.txt --context 16 --batch-size 2 --held-out text.txt --dry-run"
    )
    assert command(line) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "gpt-lnfree" in lines[0] and "124 steps of 32 tokens" in lines[0]
    assert lines[2:] == [
        "step    20  freeze 0.pre_mlp",
        "step    26  freeze 1.pre_mlp",
        "step    32  freeze 0.pre_attn q,k",
        "step    38  freeze 1.pre_attn q,k",
        "step    44  freeze 0.pre_attn v",
        "step    53  freeze 1.pre_attn v",
        "step    62  freeze final",
    ]
    assert sorted(place.rglob("*")) == before


def test_removal_and_control_from_a_directory(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "gpt --recipe removal.toml --context 12 --text text.txt --held-out text.txt"
    assert command(f"remove-norm {options} --out free") == 0
    assert command(f"remove-norm {options} --out vanilla --control vanilla") == 0
    free, vanilla = (
        json.loads(Path(run, "model", "normlens.json").read_text(encoding="utf-8"))
        for run in ("free", "vanilla")
    )
    assert free["ancestor_sha256"] == vanilla["ancestor_sha256"] is not None
    assert free["training_tokens"] == vanilla["training_tokens"]
    assert (free["name"], vanilla["name"]) == ("gpt-lnfree", "gpt-vanilla")
    assert removable_layers(open_ancestor("vanilla/model").model) == 2
    with pytest.raises(NotApplicable, match="a constant already"):
        removable_layers(open_ancestor("free/model").model)


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("train mine.toml --out run", UsageError, "exactly one of --books DIRECTORY and --text"),
        ("train mine.toml --text text.txt --books . --out run", UsageError, "exactly one of"),
        ("train mine.toml --text text.txt", UsageError, "--out is missing"),
        ("train mine.toml --text text.txt --out run --steps 0", UsageError, "steps: "),
        ("train mine.toml --text text.txt --out run --threads 0", UsageError, "--threads is 0"),
        ("train yours --text text.txt --out run", UnknownName, "no recipe 'yours'"),
        ("train mine.toml --text nothing.txt --out run", NormlensError, "no text nothing.txt"),
        ("train mine.toml --text text.txt --device no --out run", UsageError, "device 'no'"),
        (
            "remove-norm llama --text text.txt --out run",
            NotApplicable,
            "LlamaForCausalLM with rms_norm",
        ),
        ("remove-norm nothing --text text.txt --out run", NormlensError, "no model 'nothing'"),
        (
            "remove-norm gpt --recipe mine.toml --text text.txt --out run",
            UsageError,
            "no .removal.",
        ),
        ("remove-norm gpt --context 65 --text text.txt --out run", UsageError, "exceeds the 64"),
        ("prepare-corpus . --out data", NormlensError, "no training book"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(
    place: Path, line: str, kind: type[NormlensError], message: str
) -> None:
    with pytest.raises(kind, match=message) as error:
        command(line)
    assert "\n" not in str(error.value)
    assert not (place / "run" / "model").exists() and not (place / "data").exists()
