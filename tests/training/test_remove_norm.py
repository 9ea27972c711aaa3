"""``normlens remove-norm`` as it is typed, and a run that is killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from cyclopts import App
from torch import Tensor

from normlens.cli import remove_norm
from normlens.errors import NormlensError, NotApplicable, UsageError
from normlens.models.export import write_model
from normlens.models.lens import Lens
from normlens.models.opening import open_model
from normlens.norms import NormKind
from normlens.training.recipe import Recipe
from normlens.training.removal_sites import removal_sites, removal_switches
from normlens.training.run import run_recipe
from normlens.training.start import open_ancestor
from tests.architectures import ARCHITECTURES
from tests.tiny import tiny_gpt2, tiny_llama, tokenizer
from tests.training.forks import Forks
from tests.training.small import excerpts, llama_recipe, small_held_out, small_text

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
SHORT = (
    "--start 1 --gap 2 --lr 1e-4 --context 12 --batch-size 16 --text text.txt --held-out text.txt"
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_model(tiny_gpt2(), tokenizer(), root / "gpt")
    write_model(tiny_llama(), tokenizer(), root / "llama")
    write_model(ARCHITECTURES["gemma3"](), tokenizer(), root / "gemma3")
    return root


@pytest.fixture
def place(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe, a removal recipe, a text, and three models."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(RECIPE, encoding="utf-8")
    Path("removal.toml").write_text(RECIPE + SCHEDULE, encoding="utf-8")
    Path("text.txt").write_text(excerpts()[0][:3000], encoding="utf-8")
    for name in ("gpt", "llama", "gemma3"):
        Path(name).symlink_to(models / name)
    return tmp_path


def command(line: str) -> int:
    app = App(name="normlens", help_format="markdown", result_action="return_value")
    remove_norm.register(app)
    return app(f"remove-norm {line}", exit_on_error=False, print_error=False)


@torch.no_grad()
def sample_logits(lens: Lens) -> Tensor:
    ids = torch.randint(0, 4096, (2, 9), generator=torch.Generator().manual_seed(0))
    return lens.model(input_ids=ids, use_cache=False).logits.double()


def card(directory: str) -> dict[str, Any]:
    return json.loads(Path(directory, "normlens.json").read_text(encoding="utf-8"))


def test_a_dry_run_prints_the_cost_and_the_schedule_and_writes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(place.rglob("*"))
    assert (
        command("gpt --text text.txt --context 16 --batch-size 2 --held-out text.txt --dry-run")
        == 0
    )
    printed = capsys.readouterr().out
    assert "gpt-lnfree" in printed and "124 steps of 32 tokens" in printed
    assert [line for line in printed.splitlines() if line.startswith("step ")] == [
        "step    20  freeze 0.pre_mlp",
        "step    26  freeze 1.pre_mlp",
        "step    32  freeze 0.pre_attn q,k",
        "step    38  freeze 1.pre_attn q,k",
        "step    44  freeze 0.pre_attn v",
        "step    53  freeze 1.pre_attn v",
        "step    62  freeze final",
    ]
    assert sorted(place.rglob("*")) == before


def test_a_plan_is_a_table_and_a_figure_and_needs_no_text(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("gemma3 --plan") == 0
    printed = capsys.readouterr().out
    for scale in ("0.pre_mlp", "0.pre_attn q,k", "1.q", "0.post_attn", "final"):
        assert scale in printed
    page = Path("gemma3-lnfree-plan.html").read_text(encoding="utf-8")
    assert "Removal schedule of gemma3-lnfree" in page and "0.post_attn" in page
    assert command("gpt --plan --start 3 --gap 2 --out run") == 0
    assert sorted(path.name for path in Path("run").iterdir()) == ["plan.html"]


def test_removal_and_control_from_a_directory(place: Path) -> None:
    options = "gpt --recipe removal.toml --context 12 --text text.txt --held-out text.txt"
    assert command(f"{options} --out free") == 0
    assert command(f"{options} --out vanilla --control vanilla") == 0
    free, vanilla = card("free/model"), card("vanilla/model")
    assert free["ancestor_sha256"] == vanilla["ancestor_sha256"] is not None
    assert free["training_tokens"] == vanilla["training_tokens"]
    assert (free["name"], vanilla["name"]) == ("gpt-lnfree", "gpt-vanilla")
    assert len(removal_switches(open_ancestor("vanilla/model").model)) == 7
    with pytest.raises(NotApplicable, match="a constant already"):
        removal_sites(open_ancestor("free/model").model)


@pytest.mark.parametrize("model", ["gpt", "llama", "gemma3"])
def test_every_form_of_the_result_gives_the_same_logits(
    place: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    forms = ["eps", "folded"] if model == "gpt" else ["folded"]
    line = f"{model} {SHORT} --out free --aux-target anchor --export clean {' '.join(forms)}"
    assert command(line) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-len(forms) :] == [f"free/model-{form}" for form in forms]
    clean = open_model("free/model")
    assert {site.spec.kind for site in clean.sites} == {NormKind.FIXED_SCALE}
    assert not any(site.spec.eps_encoded for site in clean.sites)
    expected = sample_logits(clean)
    ancestor = sample_logits(open_model(model))
    assert not torch.allclose(expected, ancestor, atol=1e-2)
    for form in forms:
        other = open_model(f"free/model-{form}")
        difference = (sample_logits(other) - expected).abs().max() / expected.abs().max()
        assert difference < 1e-5, form
        assert card(f"free/model-{form}")["form"] == form
        if form == "eps":
            assert all(site.spec.eps_encoded for site in other.sites)
    assert "--aux-target anchor" in card("free/model")["command"]


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("nothing --text text.txt --out run", NormlensError, "no model 'nothing'"),
        ("gpt --recipe mine.toml --text text.txt --out run", UsageError, "no .removal."),
        ("gpt --context 65 --text text.txt --out run", UsageError, "exceeds the 64"),
        ("gpt --preset small --gap 2 --plan", UsageError, "one of --recipe, --preset"),
        ("gpt --steps 30 --plan", UsageError, "raise steps or shorten the schedule"),
        ("gemma3 --preset small --plan", UsageError, "says nothing of qk_norm"),
        ("gpt --control aux --aux-target anchor --text text.txt --out run", UsageError, "anchor"),
        ("gpt --control aux --export eps --text text.txt --out run", UsageError, "keeps its norms"),
        ("gpt --text text.txt", UsageError, "--out is missing"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(
    place: Path, line: str, kind: type[NormlensError], message: str
) -> None:
    with pytest.raises(kind, match=message) as error:
        command(line)
    assert "\n" not in str(error.value)
    assert not (place / "run" / "model").exists()


def test_a_first_position_apart_is_stored(place: Path) -> None:
    assert command(f"llama {SHORT} --out free --first-position apart") == 0
    lens = open_model("free/model")
    constants = [site.spec.position_scales for site in lens.sites]
    assert all(scales is not None and len(scales) == 2 for scales in constants)
    assert sample_logits(lens).isfinite().all()
    with pytest.raises(NotApplicable):
        removal_sites(lens.model)


def outcome(recipe: Recipe, root: Path) -> dict[str, bytes]:
    run_recipe(recipe, small_text(root), root / "run", held_out=small_held_out())
    files = [*sorted((root / "run" / "model").iterdir()), root / "run" / "log.csv"]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.xdist_group("forks")
def test_a_killed_removal_of_a_llama_ends_like_an_unbroken_one(
    tmp_path: Path, models: Path, forks: Forks
) -> None:
    """Killed with signal 9 while some scales are frozen and the anchor is set."""
    for name in ("killed", "unbroken", "without"):
        (tmp_path / name).mkdir()
    recipe = llama_recipe(models / "llama")
    job = ("removal", tmp_path / "killed", models / "llama")
    assert forks.run(job) == [-signal.SIGKILL]
    assert not (tmp_path / "killed" / "run" / "model").exists()
    killed, unbroken = (outcome(recipe, tmp_path / name) for name in ("killed", "unbroken"))
    assert killed == unbroken
    rows = [row.split(",") for row in unbroken["log.csv"].decode().splitlines()]
    live, auxiliary = rows[0].index("live_scales"), rows[0].index("auxiliary")
    assert [int(row[live]) for row in rows[1:]][:4] == [7, 7, 7, 6]
    assert [float(row[auxiliary]) > 0 for row in rows[1:]][:5] == [False] * 3 + [True] * 2
    mean = {"weight": 0.1, "target": "mean"}
    without = outcome(llama_recipe(models / "llama", auxiliary=mean), tmp_path / "without")
    assert without["log.csv"] != unbroken["log.csv"]
