"""The removal schedule: published rows, order, refusals, controls."""

from __future__ import annotations

import pytest

from normlens.errors import UnknownName, UsageError
from normlens.training.presets import PRESETS, preset_for, preset_named, preset_recipe
from normlens.training.recipe import Phase, Recipe, Removal, load_recipe
from normlens.training.removal_plan import plan_tables
from normlens.training.schedule import (
    Switch,
    check_schedule,
    control_recipe,
    freezes,
    live_scales,
    pre_norm_switches,
    removal_recipe,
    removal_schedule,
)

# 2507.02559: layers, start and gap of the MLP phase, then starts of q/k, v, final, gap of v.
PUBLISHED = [
    (12, 20, 2, 44, 68, 104, 3),
    (24, 20, 2, 68, 116, 188, 3),
    (36, 30, 4, 174, 318, 534, 6),
    (48, 50, 4, 242, 434, 722, 6),
]


@pytest.mark.parametrize(("layers", "start", "gap", "qk", "v", "final", "v_gap"), PUBLISHED)
def test_the_schedule_is_the_published_one(
    layers: int, start: int, gap: int, qk: int, v: int, final: int, v_gap: int
) -> None:
    assert removal_schedule(pre_norm_switches(layers), start=start, gap=gap) == Removal(
        mlp=Phase(start=start, gap=gap),
        qk=Phase(start=qk, gap=gap),
        v=Phase(start=v, gap=v_gap),
        final_step=final,
    )


def test_freezes_are_listed_in_order_of_time() -> None:
    events = freezes(removal_schedule(pre_norm_switches(2), start=3, gap=4), pre_norm_switches(2))
    assert [(event.step, event.site) for event in events] == [
        (3, "0.pre_mlp"),
        (7, "1.pre_mlp"),
        (11, "0.pre_attn q,k"),
        (15, "1.pre_attn q,k"),
        (19, "0.pre_attn v"),
        (25, "1.pre_attn v"),
        (31, "final"),
    ]


@pytest.mark.parametrize("name", ["books-lnfree"])
def test_the_bundled_schedule_can_be_carried_out(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.removal is not None
    check_schedule(recipe.removal, pre_norm_switches(6), recipe.steps)
    with pytest.raises(UsageError, match="raise steps"):
        check_schedule(recipe.removal, pre_norm_switches(6), 150)


def test_v_before_q_and_k_is_refused() -> None:
    plan = Removal(
        mlp=Phase(start=1, gap=1), qk=Phase(start=4, gap=3), v=Phase(start=5, gap=1), final_step=9
    )
    check_schedule(plan, pre_norm_switches(1), 10)
    with pytest.raises(UsageError, match="layer 1 freezes v at step 6, before q/k at step 7"):
        check_schedule(plan, pre_norm_switches(2), 10)


@pytest.mark.parametrize("layers", [1, 6, 12, 48])
def test_a_default_recipe_can_be_carried_out(layers: int) -> None:
    recipe = removal_recipe("mine", "somewhere", pre_norm_switches(layers))
    assert recipe.removal is not None
    check_schedule(recipe.removal, pre_norm_switches(layers), recipe.steps)
    assert recipe.steps == 2 * recipe.removal.final_step


def test_controls_differ_from_the_removal_in_what_they_drop_alone() -> None:
    removal = removal_recipe("free", "somewhere", pre_norm_switches(2))
    vanilla = control_recipe(removal, "control", "vanilla")
    aux = control_recipe(removal, "aux", "aux")
    assert vanilla.removal is None and vanilla.auxiliary is None
    assert aux.removal is None and aux.auxiliary == removal.auxiliary
    apart = {"name", "purpose", "removal", "auxiliary"}
    for control in (vanilla, aux):
        assert control.model_dump(exclude=apart) == removal.model_dump(exclude=apart)


def test_phases_that_gpt2_lacks_come_between_the_others() -> None:
    """A scale is frozen while a live norm downstream still catches what changes."""
    switches = (
        Switch("embed", None, "embed"),
        Switch("mlp", 0, "0.pre_mlp"),
        Switch("qk", 0, "0.pre_attn q,k"),
        Switch("v", 0, "0.pre_attn v"),
        Switch("qk_norm", 0, "0.q"),
        Switch("other", 0, "0.other"),
        Switch("post", 0, "0.post_mlp"),
        Switch("final", None, "final"),
    )
    plan = removal_schedule(switches, start=5, gap=2)
    assert [(event.step, event.phase) for event in freezes(plan, switches)] == [
        (5, "embed"),
        (7, "mlp"),
        (9, "qk"),
        (11, "qk_norm"),
        (13, "v"),
        (16, "other"),
        (19, "post"),
        (22, "final"),
    ]
    assert [live_scales(plan, switches, step) for step in (4, 5, 12, 22)] == [8, 7, 4, 0]


def test_a_phase_that_the_schedule_lacks_is_asked_for() -> None:
    plan = removal_schedule(pre_norm_switches(2))
    with pytest.raises(UsageError, match=r"norm 1\.q and .* nothing of qk_norm; add qk_norm"):
        check_schedule(plan, (*pre_norm_switches(2), Switch("qk_norm", 1, "1.q")), 500)


@pytest.mark.parametrize(("preset", "row"), list(zip(PRESETS, PUBLISHED, strict=True)))
def test_presets_are_the_published_recipes(preset, row: tuple[int, ...]) -> None:
    layers, start, gap, qk, v, final, v_gap = row
    recipe = preset_recipe(preset, "mine", "gpt2")
    assert recipe.removal is not None
    assert recipe.removal == removal_schedule(pre_norm_switches(layers), start=start, gap=gap)
    assert (preset.starts, preset.gaps) == ((start, qk, v, final), (gap, gap, v_gap))
    check_schedule(recipe.removal, pre_norm_switches(layers), recipe.steps)
    assert recipe.batch_size * (recipe.context or 0) == 2**19


# 2507.02559: lr, its end, auxiliary weight, warm-up, steps.
SETTINGS = {
    "small": (6e-4, 3e-4, 0.1, 25, 300),
    "medium": (6e-4, 3e-4, 0.1, 10, 500),
    "large": (3e-4, 4e-5, 0.03, 15, 600),
    "xl": (1e-4, 2e-5, 0.01, 20, 800),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_presets_have_the_published_settings(name: str) -> None:
    recipe = preset_recipe(preset_named(name), "mine", "gpt2")
    optimizer, auxiliary = recipe.optimizer, recipe.auxiliary
    assert auxiliary is not None and auxiliary.target == "mean"
    end = optimizer.lr * optimizer.final_lr_fraction
    found = (optimizer.lr, end, auxiliary.weight, optimizer.warmup_steps, recipe.steps)
    assert found == pytest.approx(SETTINGS[name])
    assert (optimizer.weight_decay, optimizer.clip) == (0.01, 1.0)


def test_a_preset_is_found_by_the_size_of_a_gpt2_alone() -> None:
    found = preset_for("gpt2", 24, 1024)
    assert found is not None and found.name == "medium"
    assert preset_for("gpt2", 24, 768) is None and preset_for("llama", 24, 1024) is None
    with pytest.raises(UnknownName, match="choose one of small, medium, large, xl"):
        preset_named("huge")


def test_the_plan_in_numbers_is_the_schedule() -> None:
    recipe = removal_recipe("mine", "somewhere", pre_norm_switches(2))
    tables = plan_tables(recipe, pre_norm_switches(2))
    assert len(tables.steps) == recipe.steps and len(tables.freezes) == 7
    assert tables.steps["live_scales"].iloc[[0, 20, 62]].tolist() == [7, 6, 0]
    assert tables.freezes["live_scales"].tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert tables.steps["lr"].max() == pytest.approx(6e-4)
    with pytest.raises(UsageError, match="raise steps"):
        plan_tables(recipe.changed(steps=30), pre_norm_switches(2))


def anchored(recipe: Recipe) -> Recipe:
    return recipe.changed(auxiliary={"weight": 0.1, "target": "anchor"})


def test_an_anchor_needs_a_removal() -> None:
    recipe = anchored(removal_recipe("free", "somewhere", pre_norm_switches(2)))
    with pytest.raises(UsageError, match="use --control vanilla"):
        control_recipe(recipe, "aux", "aux")
    assert control_recipe(recipe, "vanilla", "vanilla").auxiliary is None
    with pytest.raises(UsageError, match="is set by a removal"):
        recipe.changed(removal=None)


def test_the_bundled_controls_are_controls() -> None:
    apart = {"name", "purpose", "removal", "auxiliary"}
    free, vanilla, aux = (load_recipe(f"books-{name}") for name in ("lnfree", "control", "aux"))
    assert vanilla.model_dump(exclude=apart) == aux.model_dump(exclude=apart)
    assert vanilla.model_dump(exclude=apart) == free.model_dump(exclude=apart)
    assert vanilla.auxiliary is None and aux.auxiliary == free.auxiliary is not None
    assert vanilla.removal is None and aux.removal is None and free.removal is not None
