"""The removal schedule: published rows, order, refusals, controls."""

from __future__ import annotations

import pytest

from normlens.errors import UsageError
from normlens.training.recipe import Phase, Removal, load_recipe
from normlens.training.schedule import (
    check_schedule,
    control_recipe,
    freezes,
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
    assert removal_schedule(layers, start=start, gap=gap) == Removal(
        mlp=Phase(start=start, gap=gap),
        qk=Phase(start=qk, gap=gap),
        v=Phase(start=v, gap=v_gap),
        final_step=final,
    )


def test_freezes_are_listed_in_order_of_time() -> None:
    events = freezes(removal_schedule(2, start=3, gap=4), 2)
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
    check_schedule(recipe.removal, 6, recipe.steps)
    with pytest.raises(UsageError, match="raise steps"):
        check_schedule(recipe.removal, 6, 150)


def test_v_before_q_and_k_is_refused() -> None:
    plan = Removal(
        mlp=Phase(start=1, gap=1), qk=Phase(start=4, gap=3), v=Phase(start=5, gap=1), final_step=9
    )
    check_schedule(plan, 1, 10)
    with pytest.raises(UsageError, match="layer 1 freezes v at step 6, before q/k at step 7"):
        check_schedule(plan, 2, 10)


@pytest.mark.parametrize("layers", [1, 6, 12, 48])
def test_a_default_recipe_can_be_carried_out(layers: int) -> None:
    recipe = removal_recipe("mine", "somewhere", layers)
    assert recipe.removal is not None
    check_schedule(recipe.removal, layers, recipe.steps)
    assert recipe.steps == 2 * recipe.removal.final_step


def test_controls_differ_from_the_removal_in_what_they_drop_alone() -> None:
    removal = removal_recipe("free", "somewhere", 2)
    vanilla = control_recipe(removal, "control", "vanilla")
    aux = control_recipe(removal, "aux", "aux")
    assert vanilla.removal is None and vanilla.auxiliary is None
    assert aux.removal is None and aux.auxiliary == removal.auxiliary
    apart = {"name", "purpose", "removal", "auxiliary"}
    for control in (vanilla, aux):
        assert control.model_dump(exclude=apart) == removal.model_dump(exclude=apart)


def test_the_bundled_controls_are_controls() -> None:
    apart = {"name", "purpose", "removal", "auxiliary"}
    free, vanilla, aux = (load_recipe(f"books-{name}") for name in ("lnfree", "control", "aux"))
    assert vanilla.model_dump(exclude=apart) == aux.model_dump(exclude=apart)
    assert vanilla.model_dump(exclude=apart) == free.model_dump(exclude=apart)
    assert vanilla.auxiliary is None and aux.auxiliary == free.auxiliary is not None
    assert vanilla.removal is None and aux.removal is None and free.removal is not None
