"""``normlens train`` and ``prepare-corpus`` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cyclopts import App

from normlens.cli import train
from normlens.errors import NormlensError, UnknownName, UsageError
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


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe and a text."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(RECIPE, encoding="utf-8")
    Path("text.txt").write_text(excerpts()[0][:3000], encoding="utf-8")
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
