"""Recipes: digests that the bundled models carry, and one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from normlens.errors import UnknownName, UsageError
from normlens.resources import data_path
from normlens.training.recipe import load_recipe
from normlens.training.start import start_of
from normlens.training.sweep import resolved
from tests.training.small import small_recipe

GOOD = """
name = "mine"
purpose = "A test."
steps = 10
batch_size = 2
seed = 0
data_seed = 0
ancestor = "books-ln"

[optimizer]
lr = 1e-3
final_lr_fraction = 0.1
warmup_steps = 2
"""
# A new field of the schema needs a default, or no model could be told from its recipe again.
GOOD_DIGEST = "43e9c6c210056b801ad8312ef08b202876fb7fa91746429a70c9b9a8a0039ac5"


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_bundled_models_carry_the_digests_of_the_bundled_recipes() -> None:
    cards = {path.parent.name: path for path in data_path("models").glob("*/normlens.json")}
    for name, path in cards.items():
        card = json.loads(path.read_text(encoding="utf-8"))
        recipe = load_recipe(name)
        if recipe.sweep is not None:
            assert card["lr"] in recipe.sweep.lr
            recipe = resolved(recipe, lr=card["lr"], seed=card["seed"])
        assert card["recipe_sha256"] == recipe.digest()


def test_the_digest_of_a_recipe_stays_what_it_was(tmp_path: Path) -> None:
    assert load_recipe(written(tmp_path, GOOD)).digest() == GOOD_DIGEST


def test_a_default_spelt_out_changes_no_digest_and_a_value_does(tmp_path: Path) -> None:
    digest = load_recipe(written(tmp_path, GOOD)).digest()
    spelt = GOOD.replace("seed = 0\n", "seed = 0\nevaluate_every = 100\n", 1)
    assert load_recipe(written(tmp_path, spelt)).digest() == digest
    changed = GOOD.replace("seed = 0\n", "seed = 0\nevaluate_every = 99\n", 1)
    assert load_recipe(written(tmp_path, changed)).digest() != digest


def test_a_change_is_validated() -> None:
    recipe = small_recipe()
    assert recipe.changed(steps=30).digest() != recipe.digest()
    with pytest.raises(UsageError, match=r"recipe small: steps: .*greater than 0"):
        recipe.changed(steps=-1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 10", "steps = 0", "steps: .*greater than 0"),
        ("steps = 10", "stops = 10", "steps: Field required"),
        ("seed = 0", "seed = 0\nsteeps = 3", "steeps: Extra inputs"),
        ("lr = 1e-3", "lr = -1e-3", "optimizer.lr: .*greater than 0"),
        ("lr = 1e-3", "lr = 1e-3 =", "is not valid TOML"),
        ('ancestor = "books-ln"', "", "exactly one of ancestor, "),
        ("data_seed = 0", "data_seed = -1", "data_seed: "),
        ("seed = 0", "seed = 0\ncontext = 1", "context: "),
    ],
)
def test_a_bad_recipe_is_one_line_that_names_file_and_field(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        load_recipe(written(tmp_path, GOOD.replace(old, new, 1)))
    assert "mine.toml" in str(error.value)


def test_an_unknown_recipe_names_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="books-lnfree"):
        load_recipe("books-nl")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("heads", 3, "not a multiple of heads 3"),
        ("vocabulary", 4095, "smaller than the tokenizer's 4096"),
        ("activation", "gelo", "'gelo' is unknown"),
    ],
)
def test_an_architecture_that_cannot_be_built(field: str, value: object, message: str) -> None:
    shape = small_recipe().architecture
    assert shape is not None
    with pytest.raises(UsageError, match=message):
        start_of(small_recipe(architecture={**shape.model_dump(), field: value}))
