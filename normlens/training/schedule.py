"""When the scale of each norm is frozen: checking, listing and deriving the schedule.

1. Every scale that can be frozen by itself is a :class:`Switch`, in one of eight phases. GPT-2
   has four: the MLP norms go first, layer by layer, then the q/k paths of the attention norms,
   then their v paths, then the final norm (the source's order).
2. The phases of other architectures are put between them so that a scale is frozen while a
   live norm downstream still catches what changes: norms on the embeddings first, norms on
   queries and keys right after the q/k path that feeds them, norms inside a branch after v,
   norms at the end of a branch after everything inside it, the final norm last.
3. A default schedule lets every phase start where the one before ends:
   ``start' = start + layers * gap``, with gap ``g`` up to the norms on queries and keys and
   ``3g/2`` from v on. With the published ``start`` and ``g`` this is the schedule of every
   model of the source.

Source: 2507.02559, appendix (starts and gaps of GPT-2 small, medium, large and XL). Step 2 is
this project's choice: no removal from a model with such norms is published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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

PhaseName = Literal["embed", "mlp", "qk", "qk_norm", "v", "other", "post", "final"]


@dataclass(frozen=True)
class Switch:
    """One scale that can be frozen by itself; ``label`` as ``3.pre_attn q,k``."""

    phase: PhaseName
    layer: int | None
    label: str


@dataclass(frozen=True)
class Freeze:
    """One scale that becomes a constant at ``step``; ``site`` is the label of its switch."""

    step: int
    site: str
    phase: PhaseName = "mlp"
    layer: int | None = None


def pre_norm_switches(layers: int) -> tuple[Switch, ...]:
    """The switches of a GPT-2-type model of ``layers`` blocks, in order of execution."""
    found: list[Switch] = []
    for layer in range(layers):
        found.append(Switch("qk", layer, f"{layer}.pre_attn q,k"))
        found.append(Switch("v", layer, f"{layer}.pre_attn v"))
        found.append(Switch("mlp", layer, f"{layer}.pre_mlp"))
    return (*found, Switch("final", None, "final"))


def removal_schedule(
    switches: Sequence[Switch], *, start: int = DEFAULT_START, gap: int = DEFAULT_GAP
) -> Removal:
    """The default schedule for a model with these switches; see the module docstring.

    Args:
        switches: of the model.
        start: step at which the first norm is frozen.
        gap: steps between two layers up to the norms on queries and keys, even.
    """
    layers = 1 + max((s.layer for s in switches if s.layer is not None), default=-1)
    present = {switch.phase for switch in switches}
    phases: dict[str, Phase] = {}
    step = start
    embed_step = None
    if "embed" in present:
        embed_step, step = step, step + gap
    for name in ("mlp", "qk", "qk_norm", "v", "other", "post"):
        every = gap if name in ("mlp", "qk", "qk_norm") else 3 * gap // 2
        # A recipe always names the phases of GPT-2; those that a model lacks take no time.
        if name in present or name in ("mlp", "qk", "v"):
            phases[name] = Phase(start=step, gap=every)
        if name in present:
            step += layers * every
    return Removal.model_validate({**phases, "embed_step": embed_step, "final_step": step})


def freeze_step(plan: Removal, switch: Switch) -> int:
    """The step from which a switch is thrown.

    Raises:
        UsageError: the schedule has no such phase.
    """
    step: int | None
    if switch.phase == "final":
        step = plan.final_step
    elif switch.phase == "embed":
        step = plan.embed_step
    else:
        phase = {
            "mlp": plan.mlp,
            "qk": plan.qk,
            "qk_norm": plan.qk_norm,
            "v": plan.v,
            "other": plan.other,
            "post": plan.post,
        }[switch.phase]
        step = None if phase is None else phase.step(switch.layer or 0)
    if step is None:
        field = "embed_step" if switch.phase == "embed" else switch.phase
        raise UsageError(
            f"removal: the model has norm {switch.label} and the schedule says nothing of "
            f"{field}; add {field} to [removal]"
        )
    return step


def freezes(plan: Removal, switches: Sequence[Switch]) -> tuple[Freeze, ...]:
    """Every scale with the step at which it is frozen, in order of time.

    Raises:
        UsageError: the schedule lacks a phase that the model needs.
    """
    events = [Freeze(freeze_step(plan, s), s.label, s.phase, s.layer) for s in switches]
    return tuple(sorted(events, key=_by_time))


def live_scales(plan: Removal, switches: Sequence[Switch], step: int) -> int:
    """How many scales are live in ``step``."""
    return sum(freeze_step(plan, switch) > step for switch in switches)


def learning_rate(step: int, steps: int, optimizer: Optimizer) -> float:
    """Linear warm-up to ``lr``, then a cosine to ``final_lr_fraction * lr`` at the last step."""
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / optimizer.warmup_steps
    done = (step - optimizer.warmup_steps) / max(1, steps - 1 - optimizer.warmup_steps)
    floor = optimizer.final_lr_fraction
    return optimizer.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def check_schedule(plan: Removal, switches: Sequence[Switch], steps: int) -> None:
    """Refuse a schedule that cannot be carried out.

    Raises:
        UsageError: the schedule lacks a phase that the model needs, a v path is frozen before
            its q/k path, or the run ends before the last scale is frozen and has trained for
            a step.
    """
    events = freezes(plan, switches)
    paired = {s.layer for s in switches if s.phase == "qk"}
    for layer in sorted(layer for layer in paired if layer is not None):
        qk, v = plan.qk.step(layer), plan.v.step(layer)
        if v < qk:
            raise UsageError(
                f"removal: layer {layer} freezes v at step {v}, before q/k at step {qk}; "
                "start the v phase later or give it a larger gap"
            )
    last = events[-1]
    if last.step >= steps:
        raise UsageError(
            f"removal: {last.site} is frozen at step {last.step}, but the run has {steps} steps; "
            "raise steps or shorten the schedule"
        )


def removal_recipe(name: str, ancestor: str, switches: Sequence[Switch]) -> Recipe:
    """The default recipe that makes ``ancestor`` scale-free.

    As many steps follow the last frozen norm as precede it. Optimizer and auxiliary weight
    are those of the source for its smaller models.
    """
    removal = removal_schedule(switches)
    return Recipe(
        name=name,
        purpose=f"Scale-free twin of {ancestor}: every norm's scale frozen by the removal recipe.",
        ancestor=ancestor,
        optimizer=Optimizer(lr=6e-4, final_lr_fraction=0.2, warmup_steps=25, weight_decay=0.01),
        auxiliary=AuxiliaryScaleLoss(weight=0.1),
        removal=removal,
        steps=2 * freezes(removal, switches)[-1].step,
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

    Raises:
        UsageError: an ``aux`` control of a scale anchor, whose target the removal sets.
    """
    anchored = recipe.auxiliary is not None and recipe.auxiliary.target == "anchor"
    if control == "aux" and anchored:
        raise UsageError(
            f"{recipe.name} has a scale anchor, whose target is set when its first norm is frozen; "
            "a control that freezes none has no such target: use --control vanilla"
        )
    purposes = {
        "vanilla": f"Vanilla control: the fine-tuning of {recipe.name} with nothing removed.",
        "aux": f"Auxiliary control: the scale loss of {recipe.name} with every norm kept.",
    }
    dropped = {"removal": None} | ({"auxiliary": None} if control == "vanilla" else {})
    return recipe.changed(name=name, purpose=purposes[control], **dropped)


def _by_time(event: Freeze) -> tuple[int, str]:
    return event.step, event.site
