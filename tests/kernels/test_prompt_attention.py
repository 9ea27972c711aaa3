"""``prompt-attention``: the oracle, closed forms, long prompts, names of heads, refusals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import PreTrainedModel

from normlens import runner
from normlens.capture.forward import observe
from normlens.capture.protocol import Finding
from normlens.capture.tree import plain_tree
from normlens.catalog import Need
from normlens.catalog.prompt_attention import PROMPT_ATTENTION, PromptAttentionParameters
from normlens.errors import NotApplicable
from normlens.hooks import hook_count
from normlens.kernels.prompt_attention import KERNEL, MOST_PAIRS, duplicates, followers, kept_tokens
from normlens.kernels.prompt_attention_tables import category
from normlens.text.sequences import Batch
from tests import planted_attention
from tests.architectures import ARCHITECTURES
from tests.decoder.tiny_decoders import tiny_decoder
from tests.kernels.harness import context_of, lens_of, sequences_of, stream
from tests.oracles import prompt_attention as oracle
from tests.tiny import tiny_gpt2, tiny_llama, tokenizer

TOKENS = [0, 5, 9, 3, 5, 9, 9, 4, 0, 5, 3]
"""Repeats at several distances, one right after itself, and the first token once more."""

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2": tiny_gpt2,
    "llama": tiny_llama,
    "mistral": ARCHITECTURES["mistral"],
}


def found(
    model: PreTrainedModel, tokens: list[int] = TOKENS, *, extra: int = 0, kept: int = 256
) -> Finding:
    parameters = PromptAttentionParameters(pattern_tokens=kept)
    lens = lens_of(model, tokenizer=tokenizer())
    context = context_of(lens, parameters, sequences_of([tokens], extra=extra))

    def look(batch: Batch):
        return observe(
            plain_tree(lens),
            batch,
            frozenset({Need.ATTENTION}),
            lambda point, chunk: KERNEL.reduce(point, chunk, batch, context),
        )

    finding = stream(KERNEL, context, look)
    assert hook_count(lens.model) == 0
    return finding


@torch.inference_mode()
def eager(model: PreTrainedModel, tokens: list[int] = TOKENS) -> np.ndarray:
    """``[layer head query key]`` from the model itself."""
    model.set_attn_implementation("eager")
    out = model(input_ids=torch.tensor([tokens]), output_attentions=True, use_cache=False)
    return torch.cat(out.attentions).double().numpy()


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_oracle(name: str) -> None:
    finding, weights = found(MODELS[name]()), eager(MODELS[name]())
    heads = finding.tables["heads"].set_index(["layer", "head"])
    assert len(heads) == weights.shape[0] * weights.shape[1]
    for (layer, head), row in heads.iterrows():
        expected = oracle.scores(weights[layer, head], TOKENS)
        for score, value in expected.items():
            assert row[score] == pytest.approx(value, rel=1e-5, abs=1e-6), score
    patterns = finding.tables["patterns"]
    where = tuple(patterns[name].to_numpy() for name in ("layer", "head", "query", "key"))
    assert patterns["weight"].to_numpy() == pytest.approx(weights[where], abs=2e-6)
    assert len(patterns) == weights.shape[0] * weights.shape[1] * 11 * 12 // 2
    queries = finding.tables["queries"]
    at = tuple(queries[name].to_numpy() for name in ("layer", "head", "position"))
    assert queries["first_mass"].to_numpy() == pytest.approx(weights[..., 0][at], abs=2e-6)
    assert (queries["outside"] == 0).all()
    seen = np.minimum(at[2] + 1, 6) if name == "mistral" else at[2] + 1
    windowed = (at[0] == 0) | (name == "mistral")
    assert (queries["keys"].to_numpy()[windowed] == seen[windowed]).all()
    assert queries["ceiling"].to_numpy()[windowed] == pytest.approx(np.log(seen[windowed]))
    assert queries.loc[queries["position"] == 0, "normalised"].isna().all()
    assert all(check.passed for check in finding.checks)


def test_scores_of_uniform_attention_are_known() -> None:
    """With a gap of 0 every query spreads evenly over the i + 1 keys it sees."""
    tokens = [0, 5, 9, 5, 9, 5]
    heads = found(planted_attention.planted_head(0.0), tokens).tables["heads"]
    share = {i: 1 / (i + 1) for i in range(6)}
    expected = {
        "previous_token": np.mean([share[i] for i in range(2, 6)]),
        "current_token": np.mean([share[i] for i in range(1, 6)]),
        "first_token": np.mean([share[i] for i in range(1, 6)]),
        "duplicate_token": np.mean([share[3], share[4], 2 * share[5]]),
        "induction": np.mean([share[3], share[4], 2 * share[5]]),
        "normalised": 1.0,
    }
    for name, value in expected.items():
        assert heads[name].to_numpy() == pytest.approx(value, rel=1e-5), name
    assert heads["n"].eq(5).all() and heads["n_induction"].eq(3).all()


def test_a_planted_sink_is_named_and_nothing_else_is() -> None:
    finding = found(planted_attention.planted_head(4.0, layer=1, head=2), [0, 5, 9, 3, 7, 8, 11])
    heads = finding.tables["heads"].set_index(["layer", "head"])
    assert heads["category"].value_counts().to_dict() == {"other": 7, "first_token": 1}
    sink = heads.loc[(1, 2)]
    assert sink["category"] == "first_token"
    masses = [planted_attention.first_mass(4.0, keys) for keys in range(2, 8)]
    assert sink["first_token"] == pytest.approx(np.mean(masses), rel=1e-4)
    numbers = {h.name: h for h in finding.headline}
    assert numbers["first_token_heads"].value == 1 / 8
    # Nothing is repeated, so there is nothing to induce from.
    assert heads["induction"].isna().all() and heads["n_induction"].eq(0).all()
    assert math.isnan(numbers["induction_largest"].value)
    assert numbers["induction_largest"].n == 0


def test_keys_of_repeats_are_those_after_the_first_position() -> None:
    ids = torch.tensor([4, 7, 4, 7, 7, 4])
    pairs = [(int(i), int(j)) for i, j in duplicates(ids).nonzero()]
    assert pairs == [(3, 1), (4, 1), (4, 3), (5, 2)]
    pairs = [(int(i), int(j)) for i, j in followers(ids).nonzero()]
    assert pairs == [(2, 1), (3, 2), (4, 2), (5, 1), (5, 3)]


def test_padding_changes_nothing_but_a_longer_prompt_does() -> None:
    plain, padded = found(tiny_gpt2()), found(tiny_gpt2(), extra=5)
    for name in plain.tables:
        pd.testing.assert_frame_equal(plain.tables[name], padded.tables[name], rtol=1e-4)
    longer = found(tiny_gpt2(), [*TOKENS, 0, 0, 0, 0, 0])
    with pytest.raises(AssertionError):
        pd.testing.assert_frame_equal(plain.tables["heads"], longer.tables["heads"], rtol=1e-4)


def test_of_a_long_prompt_the_last_pattern_is_kept() -> None:
    whole, part = found(tiny_gpt2()), found(tiny_gpt2(), kept=4)
    assert not whole.warnings and "last 4 of 11 tokens" in part.warnings[0]
    pd.testing.assert_frame_equal(whole.tables["heads"], part.tables["heads"])
    patterns = whole.tables["patterns"]
    last = patterns[(patterns["query"] >= 7) & (patterns["key"] >= 7)].reset_index(drop=True)
    pd.testing.assert_frame_equal(last, part.tables["patterns"])
    queries = part.tables["queries"]
    inside = patterns[patterns["key"] >= 7].groupby(["layer", "head", "query"])["weight"].sum()
    late = queries[queries["position"] >= 7]
    assert late["outside"].to_numpy() == pytest.approx(1 - inside.to_numpy(), abs=1e-5)


@pytest.mark.parametrize("heads", [1, 8, 36, 270, 4096])
@pytest.mark.parametrize("tokens", [2, 128, 3000])
def test_patterns_are_bounded(tokens: int, heads: int) -> None:
    kept = kept_tokens(tokens, 1024, heads)
    assert 2 <= kept <= min(tokens, 1024)
    assert heads * kept * (kept + 1) // 2 <= MOST_PAIRS
    if kept < min(tokens, 1024):
        assert heads * (kept + 1) * (kept + 2) // 2 > MOST_PAIRS


def test_a_prompt_of_700_tokens_keeps_a_bounded_part() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = [0, *torch.randint(1, 40, (699,), generator=generator).tolist()]
    finding = found(tiny_gpt2(n_positions=700), tokens, kept=50)
    assert len(finding.tables["patterns"]) == 8 * 50 * 51 // 2
    assert len(finding.tables["queries"]) == 8 * 700
    weights = eager(tiny_gpt2(n_positions=700), tokens)
    for row in finding.tables["heads"].itertuples():
        expected = oracle.scores(weights[row.layer, row.head], tokens)
        assert row.induction == pytest.approx(expected["induction"], rel=1e-4)


def test_a_head_is_named_after_content_before_the_first_token() -> None:
    scores = dict.fromkeys(("previous_token", "duplicate_token", "current_token"), 0.1)
    assert category({**scores, "induction": 0.5, "first_token": 0.9}, 0.4) == "induction"
    assert category({**scores, "induction": 0.3, "first_token": 0.9}, 0.4) == "first_token"
    assert category({**scores, "induction": math.nan, "first_token": 0.3}, 0.4) == "other"


def test_tables_are_as_declared() -> None:
    finding = found(tiny_gpt2())
    for schema in PROMPT_ATTENTION.tables:
        assert set(finding.tables[schema.name]) == {*(c.name for c in schema.columns), "status"}


def test_encoders_and_weights_without_a_sum_are_refused() -> None:
    with pytest.raises(NotApplicable, match="encoder"):
        found(ARCHITECTURES["bert-encoder"]())
    with pytest.raises(NotApplicable, match="ReLU"):
        found(tiny_decoder("relu"))


def test_two_prompts_in_one_call_are_not_confused() -> None:
    lens = lens_of(tiny_gpt2(), tokenizer=tokenizer())
    corpus = sequences_of([[1, 2, 3]])
    corpus = dataclasses.replace(corpus, bos="prepend")
    names = ("prompt-attention", "prompt-scale")
    texts = ("Alice took the key", "The door was open and she was there")
    parameters = {name: {"prompt": text} for name, text in zip(names, texts, strict=True)}
    both = runner.run(names, lens, corpus, parameters=parameters)
    for name, result in zip(names, both, strict=True):
        (alone,) = runner.run([name], lens, corpus, parameters=parameters)
        table = {"prompt-attention": "queries", "prompt-scale": "residual"}[name]
        pd.testing.assert_frame_equal(result.tables[table], alone.tables[table])
        assert result.provenance["toy"]["tokens"] == alone.provenance["toy"]["tokens"]
    words = both[1].tables["residual"].drop_duplicates("position")["token"]
    assert "".join(words) == "<|bos|>" + texts[1]
