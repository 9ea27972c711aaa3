"""Recipes are data: one TOML file says everything that decides the weights.

A recipe, the corpus and the library versions determine a training run to the byte, on one
kind of processor with one number of threads.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from normlens.errors import UnknownName, UsageError
from normlens.resources import data_path

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0)]


def _sorted(value: Any) -> Any:
    """Tables in one order of their keys, so that a digest does not depend on the order."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value


Table = Annotated[dict[str, Any], AfterValidator(_sorted)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Architecture(_Frozen):
    """A GPT-2-type decoder: pre-norm, learned positions, tied embeddings."""

    layers: Positive
    width: Positive
    heads: Positive
    context: Annotated[int, Field(ge=2)]
    vocabulary: Positive
    activation: str = "gelu_pytorch_tanh"
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5


class Optimizer(_Frozen):
    """AdamW with linear warm-up and a cosine to ``final_lr_fraction`` of ``lr``."""

    lr: Rate
    final_lr_fraction: Fraction
    warmup_steps: int = Field(ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0


class Sweep(_Frozen):
    """Learning rates to try before the run, each on ``tokens`` tokens; see ``training.sweep``."""

    lr: Annotated[tuple[Rate, ...], Field(min_length=1)]
    tokens: Positive


class AuxiliaryScaleLoss(_Frozen):
    """``weight * mean_pos (scale_pos - target)**2`` at the final norm's input.

    ``target = "mean"``: the mean scale of the batch over positions other than the first,
    without gradient. Source: 2507.02559, the auxiliary loss that keeps removal stable.

    ``target = "anchor"``: a constant, which takes the place of the final norm in keeping
    cross-entropy from growing the logits: the EMA of the mean scale over all tokens, fixed at
    the step where the first norm is frozen; until then the loss is 0. Source: 2602.10408, the
    fixed-target scale loss ``lambda * E (s - s_target)**2``. There all norms taper at once and
    the EMA starts at 0 and is corrected for that; here it starts at its first value.
    """

    weight: Annotated[float, Field(gt=0)]
    target: Literal["mean", "anchor"] = "mean"


class Phase(_Frozen):
    """Freeze one layer after another: layer ``l`` at step ``start + l * gap``."""

    start: int = Field(ge=1)
    gap: int = Field(ge=0)

    def step(self, layer: int) -> int:
        """The step from which layer ``layer`` is frozen."""
        return self.start + layer * self.gap


class Removal(_Frozen):
    """When each norm's scale is frozen, and how the frozen value is estimated.

    The value is an exponential moving average of the mean scale of all tokens of a step.
    Source: 2507.02559, the schedule of MLP norms, then q/k, then v, then the final norm.
    The optional phases are for norms that GPT-2 lacks: on the embeddings, on queries and
    keys, inside branches, and after branches; see :mod:`normlens.training.schedule`.

    ``first_position``: the source counts it as any other (``mean``). Where its scale is far
    larger than that of the rest (massive activations) and sequences are short, that mean fits
    no token; ``apart`` gives it a constant of its own, as an earlier version of the source did
    for a while.
    """

    embed_step: Annotated[int, Field(ge=1)] | None = None
    mlp: Phase
    qk: Phase
    qk_norm: Phase | None = None
    v: Phase
    other: Phase | None = None
    post: Phase | None = None
    final_step: int = Field(ge=1)
    ema: Fraction = 0.9
    first_position: Literal["mean", "apart"] = "mean"


class Recipe(_Frozen):
    """One training run.

    The run starts from ``ancestor`` (a bundled id, a directory or a hub id), or initialises
    a GPT-2-type ``architecture`` or a ``decoder``: the fields of
    :class:`normlens.decoder.DecoderConfig`.

    ``data_seed`` fixes the order of the sequences, so runs with equal ``data_seed`` and
    ``batch_size`` see equal batches at equal steps. ``context`` shortens the training
    sequences of an ancestor. ``tokenizer`` is a directory under ``data/`` for what is
    initialised; an ancestor brings its own.

    ``micro_batch`` sequences go through the model at a time: equal gradients up to rounding,
    less memory. ``precision`` bfloat16 means autocast: weights, moments and losses stay
    float32. ``gradient_checkpointing`` trades time for memory.
    """

    name: str
    purpose: str
    ancestor: str | None = None
    architecture: Architecture | None = None
    decoder: Table | None = None
    tokenizer: str = "tokenizer"
    optimizer: Optimizer
    sweep: Sweep | None = None
    auxiliary: AuxiliaryScaleLoss | None = None
    removal: Removal | None = None
    steps: Positive
    batch_size: Positive
    seed: int
    data_seed: Annotated[int, Field(ge=0)]
    checkpoint_every: Positive = 50
    evaluate_every: Positive = 100
    evaluation_sequences: Positive = 96
    divergence_margin: float = 2.0
    context: Annotated[int, Field(ge=2)] | None = None
    micro_batch: Positive | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False

    def digest(self) -> str:
        """SHA-256 of the recipe's canonical JSON; a default spelt out changes nothing."""
        canonical = self.model_dump_json(exclude_defaults=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def changed(self, **fields: Any) -> Recipe:
        """A validated copy with other ``fields``; its digest differs.

        Raises:
            UsageError: a field does not fit.
        """
        return parse_recipe({**self.model_dump(), **fields}, where=f"recipe {self.name}")


def load_recipe(name_or_path: str) -> Recipe:
    """Read a recipe by bundled name (``books-ln``) or by path (``my.toml``).

    Raises:
        UnknownName: no bundled recipe and no file of that name.
        UsageError: the file is not valid TOML or not a valid recipe.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = _bundled().get(name_or_path, path)
    if not path.is_file():
        known = ", ".join(recipe_names())
        raise UnknownName(
            f"no recipe {name_or_path!r}; bundled recipes: {known}; or give a .toml file"
        )
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"recipe {path} is not valid TOML: {error}") from error
    return parse_recipe(fields, where=f"recipe {path}")


def parse_recipe(fields: dict[str, Any], *, where: str) -> Recipe:
    """A recipe from its fields.

    Args:
        fields: as in the TOML file.
        where: names the source in errors.

    Raises:
        UsageError: unknown, missing or out-of-range field, or not exactly one of ancestor,
            architecture and decoder; names the field.
    """
    try:
        recipe = Recipe.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where}: {field}: {first['msg']}; fix the field") from error
    starts = (recipe.ancestor, recipe.architecture, recipe.decoder)
    if sum(start is not None for start in starts) != 1:
        raise UsageError(f"{where}: give exactly one of ancestor, [architecture] and [decoder]")
    shape = recipe.architecture
    if shape is not None and shape.width % shape.heads:
        raise UsageError(
            f"{where}: architecture.width {shape.width} is not a multiple of heads {shape.heads}"
        )
    anchored = recipe.auxiliary is not None and recipe.auxiliary.target == "anchor"
    if anchored and recipe.removal is None:
        raise UsageError(
            f"{where}: auxiliary.target 'anchor' is set by a removal; add [removal] or use 'mean'"
        )
    if recipe.ancestor is None and recipe.context is not None:
        raise UsageError(
            f"{where}: context is for ancestors; set architecture.context or "
            "decoder.max_position_embeddings instead"
        )
    if recipe.decoder is not None:
        # Late: it loads torch, which a recipe for anything else does without.
        from normlens.training.initialise import decoder_config

        decoder_config(recipe.decoder, where=where)
    return recipe


def recipe_names() -> list[str]:
    """Names of the bundled recipes, sorted."""
    return sorted(_bundled())


def _bundled() -> dict[str, Path]:
    """Recipes in ``data/recipes`` and its directories; no two have one name."""
    return {path.stem: path for path in data_path("recipes").rglob("*.toml")}
