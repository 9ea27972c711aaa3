"""Steps of the trainer: micro-batches, weight decay, precision, checkpointing, after_step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from normlens.errors import NotApplicable, UsageError
from normlens.models.export import write_model
from normlens.models.opening import open_model
from normlens.training.dropout import remove_dropout
from normlens.training.final_norm import final_norm
from normlens.training.loop import Progress
from normlens.training.objective import next_token_loss
from normlens.training.recipe import Recipe, parse_recipe
from normlens.training.run import run_recipe
from normlens.training.start import open_ancestor, start_of
from normlens.training.trainer import AfterStep, Trainer
from tests.tiny import randomise, tiny_gpt2, tiny_llama, tokenizer
from tests.training.small import small_held_out, small_recipe, small_text

IDS = torch.randint(0, 4096, (5, 12), generator=torch.Generator().manual_seed(4))
DECODER: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "norm": {"kind": "layer_norm", "eps": 3e-4, "gain": True, "bias": True},
}


def decoder_recipe(fields: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    """Two layers of the composed decoder; ``fields`` are of its config."""
    base = small_recipe().model_dump()
    dropped = {"architecture": None, "auxiliary": None, "removal": None}
    decoder = {**DECODER, **(fields or {})}
    return parse_recipe({**base, **dropped, "decoder": decoder, **changes}, where="test")


def model_of(recipe: Recipe) -> PreTrainedModel:
    """What the recipe starts from, every parameter drawn anew."""
    return randomise(start_of(recipe).model, 0).train()


def gradients(recipe: Recipe, ids: Tensor = IDS) -> tuple[float, dict[str, Tensor]]:
    model = model_of(recipe)
    found = Trainer(recipe, model).gradients(ids)
    return found.loss, {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Relative to the largest gradient."""
    assert a.keys() == b.keys()
    largest = max(float(value.abs().max()) for value in a.values())
    return max(float((a[name] - b[name]).abs().max()) for name in a) / largest


@pytest.mark.parametrize("micro_batch", [1, 2, 5])
def test_micro_batches_have_the_gradients_of_the_whole_batch(micro_batch: int) -> None:
    loss, whole = gradients(decoder_recipe())
    split_loss, split = gradients(decoder_recipe(micro_batch=micro_batch))
    assert split_loss == pytest.approx(loss, rel=1e-6)
    assert largest_difference(split, whole) < 1e-5


def test_the_unweighted_mean_of_unequal_micro_batches_is_something_else() -> None:
    _, whole = gradients(decoder_recipe())
    model = model_of(decoder_recipe())
    parts = IDS.split(2)
    for part in parts:
        (next_token_loss(model, part) / len(parts)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), decoder_recipe().optimizer.clip)
    mean = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert largest_difference(mean, whole) > 1e-2


def test_gradient_checkpointing_changes_no_gradient() -> None:
    _, whole = gradients(decoder_recipe())
    _, again = gradients(decoder_recipe(gradient_checkpointing=True))
    assert largest_difference(again, whole) < 1e-6


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_weights() -> None:
    loss, whole = gradients(decoder_recipe())
    half_loss, half = gradients(decoder_recipe(precision="bfloat16"))
    assert {value.dtype for value in half.values()} == {torch.float32}
    # Eight bits of mantissa: different, and not by much.
    assert 1e-4 < largest_difference(half, whole) < 0.1
    assert half_loss != loss and half_loss == pytest.approx(loss, rel=1e-2)


def test_a_model_without_gradient_checkpointing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_gpt2()
    monkeypatch.setattr(type(model), "supports_gradient_checkpointing", False)
    with pytest.raises(UsageError, match="GPT2LMHeadModel has no gradient checkpointing"):
        Trainer(small_recipe(removal=None, gradient_checkpointing=True), model)


def test_weight_decay_spares_norms_and_vectors() -> None:
    recipe = decoder_recipe()
    model = model_of(recipe)
    decayed, spared = Trainer(recipe, model).optimizer.param_groups
    names = {id(p): n for n, p in model.named_parameters()}
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert all("norm" not in names[id(p)] and p.ndim == 2 for p in decayed["params"])
    assert {names[id(p)].rpartition(".")[2] for p in spared["params"]} == {"weight", "bias"}
    assert any(names[id(p)].endswith("q_proj.bias") for p in spared["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(names)


def test_a_model_that_tends_its_weights_does_so_after_each_step() -> None:
    recipe = decoder_recipe({"placement": "ngpt", "norm": {"kind": "l2_norm", "eps": 3e-4}})
    model = start_of(recipe).model.train()
    trainer = Trainer(recipe, model)
    trainer.prepare(4)
    trainer.gradients(IDS)
    trainer.optimizer.step()
    # The optimizer alone leaves the unit sphere.
    rows = model.get_submodule("model.embed_tokens").get_parameter("weight")
    assert (rows.norm(dim=1) - 1).abs().max() > 1e-3
    trainer.update()
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(4096))


def test_a_model_without_after_step_is_left_alone() -> None:
    assert not isinstance(tiny_gpt2(), AfterStep)


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_llama])
def test_the_auxiliary_loss_reads_the_final_norm_of_any_family(make: Any) -> None:
    model = make().train()
    found = final_norm(model)
    assert found.eps == pytest.approx(3e-4)
    assert (found.path, found.centred) == {
        tiny_gpt2: ("transformer.ln_f", True),
        tiny_llama: ("model.norm", False),
    }[make]
    recipe = small_recipe(removal=None, auxiliary={"weight": 0.5})
    seen: list[Tensor] = []
    handle = model.get_submodule(found.path).register_forward_pre_hook(
        lambda _, arguments: seen.append(arguments[0].detach())
    )
    losses = Trainer(recipe, model).gradients(IDS)
    handle.remove()
    spread = seen[0].var(-1, correction=0) if found.centred else seen[0].square().mean(-1)
    scale = (spread + 3e-4).sqrt()
    expected = 0.5 * (scale - scale[:, 1:].mean()).square().mean().item()
    assert losses.auxiliary == pytest.approx(expected, rel=1e-5)


def test_a_model_without_a_live_final_scale_has_no_auxiliary_loss() -> None:
    norm = {"kind": "dyt", "alpha": 0.5, "gain": True, "bias": True}
    recipe = decoder_recipe({"norm": norm}, auxiliary={"weight": 0.1})
    with pytest.raises(NotApplicable, match="final_norm is dyt"):
        Trainer(recipe, start_of(recipe).model)
    recipe = decoder_recipe({"final_norm": None}, auxiliary={"weight": 0.1})
    with pytest.raises(NotApplicable, match=r"final.norm"):
        Trainer(recipe, start_of(recipe).model)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiny_gpt2(attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5),
        lambda: tiny_llama(attention_dropout=0.5),
    ],
)
def test_no_dropout_is_left(make: Any) -> None:
    model = make().train()
    with torch.no_grad():
        first, second = (model(input_ids=IDS).logits for _ in range(2))
        assert not torch.equal(first, second)
        remove_dropout(model)
        first, second = (model(input_ids=IDS).logits for _ in range(2))
    assert torch.equal(first, second)


def test_any_causal_model_can_be_trained_on_from(tmp_path: Path) -> None:
    write_model(tiny_llama(), tokenizer(), tmp_path / "llama")
    start = open_ancestor(str(tmp_path / "llama"))
    assert start.context == 64 and len(start.ancestor_sha256) == 64
    assert all(p.requires_grad for p in start.model.parameters())
    recipe = small_recipe(removal=None, architecture=None, ancestor=str(tmp_path / "llama"))
    trainer = Trainer(recipe, start_of(recipe).model.train())
    losses = []
    for _ in range(3):
        trainer.prepare(4)
        losses.append(trainer.gradients(IDS).loss)
        trainer.update()
    assert losses[-1] < losses[0]
    before = open_model(str(tmp_path / "llama")).identity.weights_sha256
    assert before != open_model(trainer.model, tokenizer=None).identity.weights_sha256


class StoppedError(Exception):
    """Raised by a test to interrupt a run."""


def stop_at_seven(progress: Progress) -> None:
    if progress.step == 7:
        raise StoppedError


@pytest.mark.parametrize(
    "fields",
    [
        {"placement": "sandwich", "depth_factor": "inverse_sqrt"},
        {"placement": "ngpt", "norm": {"kind": "l2_norm", "eps": 3e-4}, "positions": "rotary"},
    ],
)
def test_an_interrupted_decoder_ends_like_an_unbroken_one(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    recipe, text = decoder_recipe(fields, micro_batch=2, steps=10), small_text(tmp_path)
    held_out = small_held_out()
    with pytest.raises(StoppedError):
        run_recipe(recipe, text, tmp_path / "b", held_out=held_out, report=stop_at_seven)
    for name in "ab":
        run_recipe(recipe, text, tmp_path / name, held_out=held_out)
    found = [
        {file.name: file.read_bytes() for file in sorted((tmp_path / name / "model").iterdir())}
        for name in "ab"
    ]
    assert found[0] == found[1]
    logs = [(tmp_path / name / "log.csv").read_bytes() for name in "ab"]
    assert logs[0] == logs[1]
    opened = open_model(str(tmp_path / "a" / "model"))
    assert opened.model.num_parameters() == start_of(recipe).model.num_parameters()
