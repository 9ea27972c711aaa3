"""``normlens remove-norm``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from normlens.cli.train import carry_out
from normlens.cli.training_options import Flag, TrainingOptions
from normlens.errors import UsageError

if TYPE_CHECKING:
    from normlens.training.recipe import Recipe
    from normlens.training.removal_sites import RemovalSite
    from normlens.training.start import Start

Form = Literal["clean", "eps", "folded"]


@Parameter(name="*")
@dataclass(frozen=True)
class Changes:
    """What is different from the recipe."""

    steps: int | None = None
    """Steps of the run."""
    start: int | None = None
    """Step at which the first norm is frozen; with --gap, a schedule derived from both."""
    gap: int | None = None
    """Steps between two layers in the phases up to q and k; v and later take 3/2 of it."""
    lr: float | None = None
    """Learning rate after warm-up; its end moves with it."""
    warmup: int | None = None
    """Steps of linear warm-up."""
    batch_size: int | None = None
    """Sequences per step."""
    micro_batch: int | None = None
    """Sequences that go through the model at a time; less memory, equal gradients."""
    context: int | None = None
    """Tokens per sequence; by default the recipe's or the model's own context."""
    aux_weight: float | None = None
    """Weight of the auxiliary scale loss, in nats over the square of the residual stream's
    units: the published 0.1 is for GPT-2, and log.csv shows what it amounts to."""
    aux_target: Literal["mean", "anchor"] | None = None
    """Target of that loss: the batch's mean scale, or one fixed when the removal starts."""
    first_position: Literal["mean", "apart"] | None = None
    """Whether the first position counts in the frozen mean, as published, or has a constant of
    its own: for models with massive activations there, and short sequences."""
    precision: Literal["float32", "bfloat16"] | None = None
    """bfloat16: autocast; weights and moments stay float32."""
    gradient_checkpointing: Annotated[bool | None, Parameter(negative=())] = None
    """Recompute activations in the backward pass: less memory, more time."""
    checkpoint_every: int | None = None
    """Steps between checkpoints."""
    evaluate_every: int | None = None
    """Steps between evaluations on the held-out text."""
    evaluation_sequences: int | None = None
    """Sequences of such an evaluation."""


def register(app: App) -> None:
    """Add the command."""
    app.command(remove_norm)


def remove_norm(
    model: str,
    *,
    out: Path | None = None,
    recipe: str | None = None,
    preset: Literal["small", "medium", "large", "xl"] | None = None,
    control: Literal["vanilla", "aux"] | None = None,
    export: Annotated[tuple[Form, ...], Parameter(consume_multiple=True, negative=())] = (),
    plan: Annotated[bool, Flag] = False,
    changes: Changes | None = None,
    options: TrainingOptions | None = None,
) -> int:
    """Fine-tune a causal language model while the scale of every norm is frozen, one by one.

    The result is scale-free: centring, gain and bias of each norm remain, and the division
    by the token's own scale is a constant. MLP norms go first, then the q/k and the v paths
    of the attention norms, then the final norm; norms on queries and keys follow the q/k
    paths, norms after branches come before the final one. GPT-2 small to XL get the published
    recipe; for other models it is derived from the number of layers. A comparison means
    something only beside a control trained on the same tokens in the same order: `--control
    vanilla` fine-tunes and removes nothing, `--control aux` adds the auxiliary scale loss
    alone.

    Examples: `normlens remove-norm books-ln --plan` shows the schedule,
    `normlens remove-norm books-ln --books BOOKS --dry-run` what it costs,
    `normlens remove-norm gpt2 --text web.jsonl --out runs/gpt2-lnfree --export eps` makes
    the model, and the same with `--control vanilla --out runs/gpt2-control` its control.

    `normlens compare gpt2 runs/gpt2-control/model runs/gpt2-lnfree/model --out out/gpt2`

    Parameters
    ----------
    model
        Bundled id, model directory or hub id.
    out
        Run directory.
    recipe
        Another schedule and optimizer: a recipe with [removal], by name or .toml file.
    preset
        The published recipe for a GPT-2 of that size; found by itself where the sizes agree.
    control
        Make this control instead.
    export
        More forms of the result beside the clean one: eps (the public LN-free format) and
        folded (no norms at all).
    plan
        Show which scale is frozen at which step, and write that as a figure, plan.html in the
        run directory; nothing is trained.
    """
    from normlens.training.removal_sites import removal_sites, whole_norms
    from normlens.training.start import open_ancestor

    changes, options = changes or Changes(), options or TrainingOptions()
    if control is not None and export:
        raise UsageError("a control keeps its norms: leave --export out")
    start = open_ancestor(model)
    sites = removal_sites(start.model)
    chosen = _recipe(model, start, sites, recipe=recipe, preset=preset, changes=changes)
    note = whole_norms(sites)
    if plan:
        return _show_plan(chosen, sites, out, note)
    if note:
        print(note, file=sys.stderr)
    if not options.dry_run:
        _check_exports(start, export)
    if control is not None:
        from normlens.training.schedule import control_recipe

        chosen = control_recipe(chosen, f"{Path(model).name}-{control}", control)
    given = {"recipe": recipe, "preset": preset, "control": control, **asdict(changes)}
    command = f"normlens remove-norm {model}{_flags(given)}"
    del start, sites
    code = carry_out(chosen, out, options, command)
    if export and out is not None and not options.dry_run:
        from normlens.training.removal_exports import write_exports
        from normlens.training.run import MODEL_DIRECTORY

        for path in write_exports(out / MODEL_DIRECTORY, export):
            print(path)
    return code


def _recipe(
    model: str,
    start: Start,
    sites: tuple[RemovalSite, ...],
    *,
    recipe: str | None,
    preset: str | None,
    changes: Changes,
) -> Recipe:
    from normlens.training.presets import preset_for, preset_named, preset_recipe
    from normlens.training.recipe import load_recipe
    from normlens.training.schedule import removal_recipe, removal_schedule

    switches = [switch for found in sites for switch in found.switches]
    name = f"{Path(model).name}-lnfree"
    scheduled = changes.start is not None or changes.gap is not None
    if sum((recipe is not None, preset is not None, scheduled)) > 1:
        raise UsageError("give one of --recipe, --preset and --start/--gap")
    config = start.model.config
    found = preset_for(config.model_type, config.num_hidden_layers, config.hidden_size)
    if recipe is not None:
        given = load_recipe(recipe)
        if given.removal is None:
            raise UsageError(f"recipe {recipe} has no [removal]; add one or leave --recipe out")
        chosen = given.changed(
            name=name, ancestor=model, architecture=None, decoder=None, sweep=None
        )
    elif preset is not None:
        chosen = preset_recipe(preset_named(preset), name, model)
    elif found is not None and not scheduled:
        chosen = preset_recipe(found, name, model)
    else:
        chosen = removal_recipe(name, model, switches)
        if scheduled:
            given_schedule = {"start": changes.start, "gap": changes.gap}
            schedule = removal_schedule(switches, **_given(given_schedule))
            chosen = chosen.changed(removal=schedule, steps=2 * schedule.final_step)
    return _changed(chosen, changes)


def _changed(recipe: Recipe, changes: Changes) -> Recipe:
    apart = ("start", "gap", "lr", "warmup", "aux_weight", "aux_target", "first_position")
    fields: dict[str, Any] = _given({k: v for k, v in asdict(changes).items() if k not in apart})
    optimizer = _given({"lr": changes.lr, "warmup_steps": changes.warmup})
    if optimizer:
        fields["optimizer"] = {**recipe.optimizer.model_dump(), **optimizer}
    if changes.first_position is not None and recipe.removal is not None:
        removal = recipe.removal.model_dump()
        fields["removal"] = {**removal, "first_position": changes.first_position}
    auxiliary = _given({"weight": changes.aux_weight, "target": changes.aux_target})
    if auxiliary:
        had = {} if recipe.auxiliary is None else recipe.auxiliary.model_dump()
        fields["auxiliary"] = {**had, **auxiliary}
    return recipe.changed(**fields) if fields else recipe


def _show_plan(recipe: Recipe, sites: tuple[RemovalSite, ...], out: Path | None, note: str) -> int:
    from normlens.cli.tables import print_frame
    from normlens.training.removal_plan import plan_tables, write_plan

    tables = plan_tables(recipe, [switch for found in sites for switch in found.switches])
    print_frame(
        tables.freezes[["step", "scale", "phase", "live_scales", "lr"]],
        title=f"{recipe.name}: {recipe.steps:,} steps of {recipe.batch_size:,} sequences",
    )
    if note:
        print(note)
    path = Path(f"{recipe.name}-plan.html") if out is None else out / "plan.html"
    write_plan(tables, recipe, path, note=note)
    print(path)
    return 0


def _check_exports(start: Start, export: tuple[Form, ...]) -> None:
    if not export:
        return
    from normlens.training.removal_exports import check_exports

    check_exports(start.model, export)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _flags(fields: dict[str, Any]) -> str:
    flags = ""
    for name, value in _given(fields).items():
        flag = f" --{name.replace('_', '-')}"
        flags += flag if value is True else f"{flag} {value}"
    return flags
