"""Attention weights other than softmax, and what a pass sees of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from normlens import runner
from normlens.capture.attention import AttentionChunk
from normlens.capture.forward import observe
from normlens.capture.points import Point
from normlens.capture.tree import plain_tree
from normlens.catalog import Need
from normlens.decoder.attention_weights import NORMALIZERS, relu_mean, softplus_l1
from normlens.models import open_model
from normlens.models.heads import attention_rule
from tests.decoder.tiny_decoders import tiny_decoder
from tests.kernels.harness import cut, random_rows, sequences_of

RULES = ("softmax", "softplus_l1", "relu")


def test_weights_are_the_formula() -> None:
    scores = torch.tensor([[[[0.5, -2.0, 7.0], [-1.0, 3.0, 0.25]]]])
    visible = torch.tensor([[[[True, True, False], [True, True, True]]]])
    soft, mean = softplus_l1(scores, visible), relu_mean(scores, visible)
    for query, keys in ((0, 2), (1, 3)):
        row = scores[0, 0, query, :keys].tolist()
        positive = [math.log(1 + math.exp(score)) for score in row]
        expected = [one / sum(positive) for one in positive]
        assert soft[0, 0, query, :keys].tolist() == pytest.approx(expected, rel=1e-6)
        expected = [max(score, 0) / keys for score in row]
        assert mean[0, 0, query, :keys].tolist() == pytest.approx(expected, rel=1e-6)
    assert soft[0, 0, 0, 2] == mean[0, 0, 0, 2] == 0


def test_a_query_that_sees_nothing_has_no_weights() -> None:
    scores, visible = torch.randn(1, 2, 1, 4), torch.zeros(1, 1, 1, 4, dtype=torch.bool)
    for rule in (softplus_l1, relu_mean):
        assert rule(scores, visible).abs().max() == 0


def test_every_rule_of_the_config_is_known() -> None:
    assert set(NORMALIZERS) == set(RULES)


def test_half_precision_weights_are_computed_wide() -> None:
    model = tiny_decoder("softplus").to(torch.bfloat16)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(input_ids=torch.arange(1, 9)[None], output_attentions=True)
    assert out.attentions[0].dtype == torch.bfloat16
    assert (out.attentions[0].float().sum(-1) - 1).abs().max() < 0.02


class Kept(dict[int, Any]):
    """Keeps the attention of every layer."""

    def __call__(self, point: Point, chunk: AttentionChunk) -> dict[str, torch.Tensor]:
        self[chunk.layer] = chunk
        return {"weights": chunk.probabilities, "residual": chunk.residual}


@pytest.mark.parametrize("rule", RULES)
def test_a_pass_sees_the_weights_of_the_model(rule: str) -> None:
    model = tiny_decoder("qk-norm", attention=rule)
    lens = open_model(model, tokenizer=None)
    assert attention_rule(lens.model) == rule
    (batch,) = cut(sequences_of(random_rows(3, (9, 4, 7)), extra=2), 3)
    kept = Kept()
    seen = observe(plain_tree(lens), batch, frozenset({Need.ATTENTION}), kept)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        theirs = model(input_ids=batch.ids, output_attentions=True).attentions
    for layer in range(2):
        weights = seen.reduced[f"attention.{layer}"]["weights"]
        torch.testing.assert_close(weights, theirs[layer], rtol=0, atol=1e-6)
        assert seen.reduced[f"attention.{layer}"]["residual"].max() < 1e-5
        assert kept[layer].softmax == (rule == "softmax")
        assert kept[layer].keys[0, 0].tolist() == list(range(1, batch.ids.shape[1] + 1))
        assert kept[layer].logits.triu(1).max() == 0 or kept[layer].logits.isneginf().any()
    wrong = torch.softmax(kept[1].logits, -1)
    assert (rule == "softmax") == torch.allclose(wrong, kept[1].probabilities, atol=1e-4)


@pytest.mark.parametrize("rule", ["softmax", "softplus_l1"])
def test_entropy_is_that_of_the_weights(rule: str) -> None:
    model = tiny_decoder("pre", attention=rule)
    lens = open_model(model, tokenizer=None)
    rows = random_rows(2, (8, 8))
    (result,) = runner.run(["attention-entropy"], lens, sequences_of(rows))
    assert result.passed
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(input_ids=torch.tensor(rows), output_attentions=True).attentions
    table: Any = result.tables["heads"].set_index(["layer", "head"])
    for layer in range(2):
        entropies = torch.special.entr(weights[layer].double()).sum(-1)[..., 1:].mean((0, 2))
        for head in range(4):
            expected = entropies[head].item()
            assert table.loc[(layer, head)]["entropy"] == pytest.approx(expected, rel=1e-5)


def test_relu_weights_have_no_entropy() -> None:
    lens = open_model(tiny_decoder("relu"), tokenizer=None, name="rectified")
    (result,) = runner.run(["attention-entropy"], lens, sequences_of(random_rows()))
    (reason,) = result.not_applicable.values()
    assert "rectified" in reason and "need not add up to 1" in reason
