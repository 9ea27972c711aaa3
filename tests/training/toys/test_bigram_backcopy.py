"""The bigram-backcopy task: what it draws, its closed form, training on it, and its measures."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from normlens.decoder import DecoderForCausalLM
from normlens.errors import BadText, UnknownName, UsageError
from normlens.text import read_documents
from normlens.training.recipe import Recipe
from normlens.training.toys import (
    VARIANTS,
    BigramBackcopy,
    character_task,
    initialised_toy,
    measure,
    toy_recipe,
    train_toy,
)


@pytest.fixture(scope="module")
def task() -> BigramBackcopy:
    return character_task()


@pytest.fixture(scope="module")
def ids(task: BigramBackcopy) -> torch.Tensor:
    return task.batch(5, 7, sequences=2000, context=32)


def test_triggers_copy_and_nothing_else_breaks_the_chain(
    task: BigramBackcopy, ids: torch.Tensor
) -> None:
    assert (ids[:, 0] == 0).all()
    assert (ids[:, 1:] != 0).all()
    trigger = task.is_trigger(ids)
    assert not trigger[:, 1].any()
    copied = ids[:, 2:] == ids[:, :-2]
    assert copied[trigger[:, 1:-1]].all()
    # Elsewhere a repetition is an accident of the chain, often the same trigger again.
    assert copied[~trigger[:, 1:-1]].float().mean() < 0.4
    assert not (trigger[:, 1:] & trigger[:, :-1]).any()


def test_bigrams_after_other_tokens_are_those_of_the_chain(
    task: BigramBackcopy, ids: torch.Tensor
) -> None:
    flat = ids.numpy()
    common = task.tokens.index("n")
    following = flat[:, 2:][flat[:, 1:-1] == common]
    counted = np.bincount(following, minlength=len(task.tokens)) / len(following)
    error = np.sqrt(task.transitions[common] * (1 - task.transitions[common]) / len(following))
    assert (np.abs(counted - task.transitions[common]) <= 5 * error + 1e-12).all()
    shuffled = np.roll(task.transitions[common], 1)
    assert (np.abs(counted - shuffled) > 5 * error).any()


def test_the_optimum_is_the_loss_of_the_true_distribution(
    task: BigramBackcopy, ids: torch.Tensor
) -> None:
    flat = ids.numpy()
    now, following = flat[:, 1:-1], flat[:, 2:]
    other = ~np.isin(now, task.triggers)
    cost = np.zeros(now.shape)
    cost[other] = -np.log(task.transitions[now[other], following[other]])
    first = -np.log(task.start[flat[:, 1]])
    by_sequence = (cost.sum(-1) + first) / (flat.shape[1] - 1)
    optimum = task.optimum(flat.shape[1])
    error = by_sequence.std() / math.sqrt(len(flat))
    assert abs(by_sequence.mean() - optimum.loss) < 4 * error
    assert cost[other].mean() == pytest.approx(optimum.other, rel=0.01)
    share = (~other).sum() / flat[:, 1:].size
    assert share == pytest.approx(optimum.trigger_share, rel=0.02)
    # A task without triggers costs more: copies are free.
    assert optimum.loss < 0.8 * optimum.other


def test_a_batch_is_a_function_of_seed_and_step(task: BigramBackcopy) -> None:
    first = task.batch(1, 3, sequences=4, context=16)
    task.batch(2, 9, sequences=4, context=16)
    assert torch.equal(first, task.batch(1, 3, sequences=4, context=16))
    assert not torch.equal(first, task.batch(1, 4, sequences=4, context=16))
    assert not torch.equal(first, task.batch(2, 3, sequences=4, context=16))


def test_a_bad_chain_is_refused(task: BigramBackcopy) -> None:
    with pytest.raises(UsageError, match="no distribution"):
        dataclasses.replace(task, transitions=2 * task.transitions)
    start = np.zeros(len(task.tokens))
    start[task.triggers[0]] = 1
    with pytest.raises(UsageError, match="no trigger may come first"):
        dataclasses.replace(task, start=start)
    with pytest.raises(BadText, match="characters, not 9999"):
        character_task(vocabulary=10_000)
    with pytest.raises(UnknownName, match="no toy variant"):
        toy_recipe("gelu", layers=1, seed=1, steps=1)


class Stopped(Exception):
    """Raised in the middle of a run."""


@dataclasses.dataclass(frozen=True)
class StopAt:
    step: int

    def __call__(self, step: int, _model: DecoderForCausalLM) -> None:
        if step == self.step:
            raise Stopped


def short(variant: str = "ln", layers: int = 1) -> Recipe:
    recipe = toy_recipe(variant, layers=layers, seed=3, steps=6)
    return recipe.changed(checkpoint_every=2, evaluate_every=3, batch_size=4)


def test_an_interrupted_run_ends_with_the_same_weights(
    task: BigramBackcopy, tmp_path: Path
) -> None:
    whole = train_toy(short(), task).state_dict()
    with pytest.raises(Stopped):
        train_toy(short(), task, tmp_path, watch=StopAt(3))
    resumed = train_toy(short(), task, tmp_path).state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    start = initialised_toy(short()).state_dict()
    assert any(not torch.equal(whole[name], start[name]) for name in whole)


@pytest.mark.parametrize("variant", VARIANTS)
def test_measures_are_those_of_the_model(task: BigramBackcopy, variant: str) -> None:
    model: Any = initialised_toy(short(variant, layers=2)).eval()
    model.set_attn_implementation("eager")
    few = task.batch(1, 0, sequences=6, context=20)
    with torch.inference_mode():
        out = model(few, output_attentions=True, output_hidden_states=True)
    found = measure(model, task, few)
    trigger = task.is_trigger(few)[:, 2:]
    for layer, weights in zip(found.layers, out.attentions, strict=True):
        to_bos = weights.mean(1)[:, 2:, 0]
        assert layer.sink_other == pytest.approx(to_bos[~trigger].mean().item(), rel=1e-4)
        assert layer.sink_trigger == pytest.approx(to_bos[trigger].mean().item(), rel=1e-4)
        mass = weights.mean(1)[:, 2:].sum(-1)[~trigger].mean().item()
        assert layer.mass_other == pytest.approx(mass, rel=1e-4)


def test_uniform_attention_has_no_sink_and_a_zeroed_value_is_a_drain(task: BigramBackcopy) -> None:
    model = initialised_toy(short()).eval()
    few = task.batch(1, 0, sequences=6, context=20)
    before = measure(model, task, few).layers[0]
    blocks: Any = model.model.layers
    positional: Any = model.model.embed_positions
    body = blocks[0].attn.body
    with torch.no_grad():
        body.q_proj.weight.zero_()
        body.q_proj.bias.zero_()
        # The values of BOS: the projection of what its norm gives, taken out by the bias.
        stream = model.model.embed_tokens.weight[0] + positional.weight[0]
        body.v_proj.bias.copy_(-body.v_proj.weight @ blocks[0].attn.pre_norm(stream))
    after = measure(model, task, few).layers[0]
    trigger = task.is_trigger(few)[:, 2:]
    uniform = (1 / torch.arange(3, 21).float()).expand_as(trigger)
    assert after.sink_other == pytest.approx(uniform[~trigger].mean().item(), rel=1e-5)
    assert after.gap_other == pytest.approx(0, abs=1e-6)
    assert after.value_ratio < 1e-5 < 0.3 < before.value_ratio


def test_the_text_of_the_chain_can_be_any(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("aabacadaabca" * 30, encoding="utf-8")
    small = character_task(read_documents(str(path)), vocabulary=5, triggers=1)
    assert small.tokens[1] == "a"
    drawn = small.batch(1, 1, sequences=8, context=12)
    assert int(drawn.max()) < 5
