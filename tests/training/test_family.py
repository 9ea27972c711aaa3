"""The bundled family trains, and ``normlens family`` says how far it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cyclopts import App

from normlens.cli import family
from normlens.errors import NormlensError, UnknownName, UsageError
from normlens.resources import data_path
from normlens.training.family import FAMILY, schemes
from normlens.training.initialise import initialised
from normlens.training.recipe import load_recipe
from normlens.training.trainer import Trainer
from tests.training.small import excerpts
from tests.training.test_queue import RECIPE

SHARED = ("steps", "batch_size", "data_seed", "seed", "evaluation_sequences")


def test_every_scheme_is_a_recipe_and_every_recipe_a_scheme() -> None:
    assert {path.stem for path in data_path("recipes", "family").glob("*.toml")} == set(FAMILY)


@pytest.mark.parametrize("deep", [False, True])
def test_schemes_differ_in_their_norms_alone(deep: bool) -> None:
    recipes = [load_recipe(name) for name in FAMILY if name.startswith("deep-") == deep]
    assert len({tuple(getattr(r, field) for field in SHARED) for r in recipes}) == 1
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    assert len({tuple((r.decoder or {})[size] for size in sizes) for r in recipes}) == 1
    for recipe in recipes:
        assert recipe.sweep is not None and len(recipe.sweep.lr) == 3
        assert recipe.optimizer.lr == recipe.sweep.lr[1]


@pytest.mark.parametrize("name", FAMILY)
def test_a_step_of_every_scheme_lowers_the_loss_of_its_batch(name: str) -> None:
    recipe = load_recipe(name)
    start = initialised(recipe)
    ids = torch.randint(0, 512, (2, 24), generator=torch.Generator().manual_seed(1))
    trainer = Trainer(recipe, start.model)
    start.model.train()
    losses = []
    # At the full rate from the first step, where the schedule would still warm up.
    for _ in range(3):
        trainer.prepare(recipe.optimizer.warmup_steps)
        losses.append(trainer.gradients(ids).loss)
        trainer.update()
    assert start.context == 128 and len(start.tokenizer) == recipe.decoder["vocab_size"]  # type: ignore[index]
    assert losses[-1] < losses[0] - 0.01


def command(line: str) -> int:
    app = App(name="normlens", help_format="markdown", result_action="return_value")
    family.register(app)
    return app(line, exit_on_error=False, print_error=False)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        text = RECIPE.format(name=name, rates="1e-2, 3e-2")
        Path(f"{name}.toml").write_text(text, encoding="utf-8")
    Path("text.txt").write_text(excerpts()[0][:3000], encoding="utf-8")
    return tmp_path


def test_the_queue_from_the_command_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "a.toml b.toml --out out --seeds 1"
    assert command(f"family {options} --text text.txt --held-out text.txt") == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["out"]
    assert "a lr 0.01 begins" in printed.err and "b seed 1 is done, held-out loss" in printed.err
    card = json.loads(Path("out/b/seed-1/model/normlens.json").read_text(encoding="utf-8"))
    assert card["command"] == "normlens family b --seeds 1 --text FILES"
    assert card["training_tokens"] == 6 * 3 * 16

    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
    assert command(f"family {options} --status") == 0
    shown = capsys.readouterr().out
    assert "b seed 1" in shown and "6/6" in shown and "6 of 6 runs ended" in shown
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")} == before


def test_the_status_of_the_bundled_family_before_it_began(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("family --status --seeds 1 2 3") == 0
    shown = capsys.readouterr().out
    assert f"0 of {len(FAMILY) * 6} runs ended" in shown
    assert sum("ngpt seed" in line for line in shown.splitlines()) == 3
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("family ln-gelo --status", UnknownName, "no recipe 'ln-gelo'"),
        ("family a.toml --out out", UsageError, "exactly one of --books"),
        ("family a.toml --text text.txt --threads 0", UsageError, "--threads is 0"),
        ("family a.toml --text text.txt --device no", UsageError, "device 'no'"),
        ("family a.toml a.toml --status", UsageError, "asked for twice"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(
    place: Path, line: str, kind: type[NormlensError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        command(line)
    assert not Path("out").exists() and not Path("runs").exists()


def test_a_decoder_that_cannot_be_built_is_one_line_that_names_the_field(tmp_path: Path) -> None:
    good = data_path("recipes", "family", "ln-gelu.toml").read_text(encoding="utf-8")
    for old, new, message in (
        ("hidden_size", "hiden_size", "decoder.hiden_size is no field"),
        ("hidden_size = 128", "hidden_size = 130", "hidden_size 130 is not a multiple"),
        ("hidden_size = 128", 'hidden_size = "wide"', "decoder: "),
        ('placement = "pre"', 'placement = "prae"', "'prae' is unknown"),
        ('kind = "layer_norm"', 'kind = "layer"', "layer"),
        ("[sweep]", "[sweeps]", "sweeps: Extra inputs"),
    ):
        path = tmp_path / "bad.toml"
        path.write_text(good.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(UsageError, match=message) as error:
            schemes([str(path)], (), tmp_path)
        assert "\n" not in str(error.value) and "bad.toml" in str(error.value)


def test_the_order_of_the_decoder_fields_changes_no_digest(tmp_path: Path) -> None:
    good = data_path("recipes", "family", "ln-gelu.toml").read_text(encoding="utf-8")
    line = "hidden_size = 128\n"
    moved = good.replace(line, "", 1).replace("[optimizer]", f"{line}\n[optimizer]")
    path = tmp_path / "moved.toml"
    path.write_text(moved, encoding="utf-8")
    assert load_recipe(str(path)).digest() == load_recipe("ln-gelu").digest()
    path.write_text(moved.replace("128\n\n[opt", "64\n\n[opt"), encoding="utf-8")
    assert load_recipe(str(path)).digest() != load_recipe("ln-gelu").digest()
