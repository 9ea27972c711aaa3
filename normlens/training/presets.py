"""The published removal recipes for GPT-2 small, medium, large and XL.

Source: 2507.02559, appendix: learning rates, auxiliary weights, warm-up, starts, gaps, steps;
weight decay 0.01, gradients clipped at norm 1, 512 sequences of 1,024 tokens (0.52 M) a step.
Moments follow ``betas = (0.9, 0.999)``, the default of the trainer that the source uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from normlens.errors import UnknownName
from normlens.training.recipe import (
    AuxiliaryScaleLoss,
    Optimizer,
    Phase,
    Recipe,
    Removal,
)

CONTEXT, BATCH_SIZE = 1024, 512


@dataclass(frozen=True)
class Preset:
    """One published recipe.

    Attributes:
        name: of the preset.
        layers: blocks of the model it is for.
        width: of its residual stream.
        lr: learning rate after warm-up.
        final_lr: at the end of the cosine.
        auxiliary: weight of the auxiliary scale loss.
        warmup: steps of linear warm-up.
        starts: first step of the MLP, q/k and v phases, and the step of the final norm.
        gaps: steps between layers in the MLP, q/k and v phases.
        steps: of the whole run.
        model_type: of the models it was published for.
    """

    name: str
    layers: int
    width: int
    lr: float
    final_lr: float
    auxiliary: float
    warmup: int
    starts: tuple[int, int, int, int]
    gaps: tuple[int, int, int]
    steps: int
    model_type: str = "gpt2"


PRESETS = (
    Preset("small", 12, 768, 6e-4, 3e-4, 0.1, 25, (20, 44, 68, 104), (2, 2, 3), 300),
    Preset("medium", 24, 1024, 6e-4, 3e-4, 0.1, 10, (20, 68, 116, 188), (2, 2, 3), 500),
    Preset("large", 36, 1280, 3e-4, 4e-5, 0.03, 15, (30, 174, 318, 534), (4, 4, 6), 600),
    Preset("xl", 48, 1600, 1e-4, 2e-5, 0.01, 20, (50, 242, 434, 722), (4, 4, 6), 800),
)


def preset_named(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UnknownName: there is none.
    """
    for preset in PRESETS:
        if preset.name == name:
            return preset
    known = ", ".join(preset.name for preset in PRESETS)
    raise UnknownName(f"no preset {name!r}; choose one of {known}")


def preset_for(model_type: str, layers: int, width: int) -> Preset | None:
    """The preset published for a model of this size, None where there is none."""
    size = (model_type, layers, width)
    return next((p for p in PRESETS if (p.model_type, p.layers, p.width) == size), None)


def preset_recipe(preset: Preset, name: str, ancestor: str) -> Recipe:
    """The recipe that applies a preset to ``ancestor``.

    The step's 512 sequences go through the model 4 at a time; that changes memory and rounding
    alone.
    """
    mlp, qk, v, final = preset.starts
    return Recipe(
        name=name,
        purpose=f"Scale-free twin of {ancestor} by the published recipe for GPT-2 {preset.name}.",
        ancestor=ancestor,
        optimizer=Optimizer(
            lr=preset.lr,
            final_lr_fraction=preset.final_lr / preset.lr,
            warmup_steps=preset.warmup,
            betas=(0.9, 0.999),
            weight_decay=0.01,
            clip=1.0,
        ),
        auxiliary=AuxiliaryScaleLoss(weight=preset.auxiliary),
        removal=Removal(
            mlp=Phase(start=mlp, gap=preset.gaps[0]),
            qk=Phase(start=qk, gap=preset.gaps[1]),
            v=Phase(start=v, gap=preset.gaps[2]),
            final_step=final,
        ),
        steps=preset.steps,
        batch_size=BATCH_SIZE,
        micro_batch=4,
        context=CONTEXT,
        seed=2,
        data_seed=12,
        checkpoint_every=25,
        evaluate_every=25,
    )
