"""When the scale of each norm is frozen: checking, listing and deriving the schedule.

1. The MLP norms go first, layer by layer, then the q/k paths of the attention norms, then
   their v paths, then the final norm.
2. A default schedule lets every phase start where the one before ends:
   ``start' = start + layers * gap``, with gaps ``g, g, 3g/2``. With the published ``start``
   and ``g`` this is the schedule of every model of the source.

Source: 2507.02559, appendix (starts and gaps of GPT-2 small, medium, large and XL).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from normlens.errors import UsageError
from normlens.training.recipe import (
    AuxiliaryScaleLoss,
    Optimizer,
    Phase,
    Recipe,
    Removal,
)

DEFAULT_START = 20
# The source's gap of 2 is for 0.52 M tokens a step. At some thousand tokens a step a
# network needs about three times as many steps to recover from each frozen norm.
DEFAULT_GAP = 6


@dataclass(frozen=True)
class Freeze:
    """One scale that becomes a constant at ``step``; ``site`` as ``3.pre_attn q,k``."""

    step: int
    site: str


def removal_schedule(layers: int, *, start: int = DEFAULT_START, gap: int = DEFAULT_GAP) -> Removal:
    """The default schedule for a model of ``layers`` blocks; see the module docstring.

    Args:
        layers: number of blocks.
        start: step at which the first MLP norm is frozen.
        gap: steps between two layers in the MLP and q/k phases, even.
    """
    qk = start + layers * gap
    v = qk + layers * gap
    v_gap = 3 * gap // 2
    return Removal(
        mlp=Phase(start=start, gap=gap),
        qk=Phase(start=qk, gap=gap),
        v=Phase(start=v, gap=v_gap),
        final_step=v + layers * v_gap,
    )


def freezes(plan: Removal, layers: int) -> tuple[Freeze, ...]:
    """Every scale with the step at which it is frozen, in order of time."""
    events = [Freeze(plan.final_step, "final")]
    for layer in range(layers):
        events.append(Freeze(plan.mlp.step(layer), f"{layer}.pre_mlp"))
        events.append(Freeze(plan.qk.step(layer), f"{layer}.pre_attn q,k"))
        events.append(Freeze(plan.v.step(layer), f"{layer}.pre_attn v"))
    return tuple(sorted(events, key=lambda event: (event.step, event.site)))


def check_schedule(plan: Removal, layers: int, steps: int) -> None:
    """Refuse a schedule that cannot be carried out.

    Raises:
        UsageError: a v path is frozen before its q/k path, or the run ends before the last
            scale is frozen and has trained for a step.
    """
    for layer in range(layers):
        qk, v = plan.qk.step(layer), plan.v.step(layer)
        if v < qk:
            raise UsageError(
                f"removal: layer {layer} freezes v at step {v}, before q/k at step {qk}; "
                "start the v phase later or give it a larger gap"
            )
    last = freezes(plan, layers)[-1]
    if last.step >= steps:
        raise UsageError(
            f"removal: {last.site} is frozen at step {last.step}, but the run has {steps} steps; "
            "raise steps or shorten the schedule"
        )


def removal_recipe(name: str, ancestor: str, layers: int) -> Recipe:
    """The default recipe that makes ``ancestor`` scale-free.

    As many steps follow the last frozen norm as precede it. Optimizer and auxiliary weight
    are those of the source for its smaller models.
    """
    removal = removal_schedule(layers)
    return Recipe(
        name=name,
        purpose=f"Scale-free twin of {ancestor}: every norm's scale frozen by the removal recipe.",
        ancestor=ancestor,
        optimizer=Optimizer(lr=6e-4, final_lr_fraction=0.2, warmup_steps=25, weight_decay=0.01),
        auxiliary=AuxiliaryScaleLoss(weight=0.1),
        removal=removal,
        steps=2 * removal.final_step,
        batch_size=32,
        seed=2,
        data_seed=12,
        checkpoint_every=40,
        evaluate_every=40,
    )


def control_recipe(recipe: Recipe, name: str, control: Literal["vanilla", "aux"]) -> Recipe:
    """The control of a removal recipe: equal steps, batches, order, optimizer and seed.

    Args:
        recipe: a recipe with a removal.
        name: of the control.
        control: ``vanilla`` drops the auxiliary scale loss and the removal, ``aux`` the
            removal alone.
    """
    purposes = {
        "vanilla": f"Vanilla control: the fine-tuning of {recipe.name} with nothing removed.",
        "aux": f"Auxiliary control: the scale loss of {recipe.name} with every norm kept.",
    }
    dropped = {"removal": None} | ({"auxiliary": None} if control == "vanilla" else {})
    return recipe.changed(name=name, purpose=purposes[control], **dropped)
