"""Training on a task in place of a text, by the same trainer and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers import set_seed

from normlens.decoder import DecoderForCausalLM
from normlens.errors import UsageError
from normlens.training.checkpoint import load_checkpoint, save_checkpoint
from normlens.training.initialise import decoder_config
from normlens.training.recipe import Recipe
from normlens.training.toys.bigram_backcopy import BOS, BigramBackcopy
from normlens.training.trainer import Trainer

Watch = Callable[[int, DecoderForCausalLM], None]


def initialised_toy(recipe: Recipe) -> DecoderForCausalLM:
    """The model of a recipe with ``[decoder]``, with the weights of its seed.

    Raises:
        UsageError: the recipe has no ``[decoder]``.
    """
    if recipe.decoder is None:
        raise UsageError(f"recipe {recipe.name} has no [decoder], which a toy is made from; add it")
    config = decoder_config(recipe.decoder, where=f"recipe {recipe.name}", bos_token_id=BOS)
    set_seed(recipe.seed)
    return DecoderForCausalLM(config)


def train_toy(
    recipe: Recipe,
    task: BigramBackcopy,
    run: Path | None = None,
    *,
    watch: Watch = lambda _step, _model: None,
) -> DecoderForCausalLM:
    """Train to the end of ``recipe``; returns the model in eval mode.

    Batches are functions of ``(data_seed, step)``, so a run that goes on from its checkpoint
    ends with the weights of an unbroken one.

    Args:
        recipe: with ``[decoder]``; its context is ``max_position_embeddings``.
        task: where batches come from.
        run: directory of the checkpoint; None keeps none.
        watch: called with the steps done and the model in eval mode, before the first step
            and after every ``evaluate_every`` of them.

    Raises:
        UsageError: the recipe has no ``[decoder]``.
        StoreMismatch: ``run`` holds a checkpoint of another recipe.
        OutputError: ``run`` cannot be written.
    """
    model = initialised_toy(recipe)
    trainer = Trainer(recipe, model)
    context = model.config.max_position_embeddings
    identity = {"recipe": recipe.digest(), "task": "bigram-backcopy"}
    done = load_checkpoint(run, model, trainer.optimizer, identity) if run else 0
    if done == 0:
        watch(0, model.eval())
    for step in range(done, recipe.steps):
        model.train()
        trainer.prepare(step)
        ids = task.batch(recipe.data_seed, step, sequences=recipe.batch_size, context=context)
        trainer.gradients(ids)
        trainer.update()
        last = step + 1 == recipe.steps
        if (step + 1) % recipe.evaluate_every == 0 or last:
            watch(step + 1, model.eval())
        if run and ((step + 1) % recipe.checkpoint_every == 0 or last):
            save_checkpoint(run, model, trainer.optimizer, {**identity, "step": step + 1})
    trainer.finish()
    return model
