"""Recording attention: equal to eager attention weights, and nothing is left behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _len_torch_function_stack
from transformers import PreTrainedModel

from normlens.capture import attention
from normlens.capture.attention import AttentionChunk, recording_attention
from normlens.capture.attention_source import Explicit, Fused
from normlens.capture.points import Point
from normlens.capture.tree import plain_tree, run_model
from normlens.errors import HookMismatch
from normlens.hooks import hook_count
from normlens.models.families import family_of
from normlens.models.lens import Lens
from normlens.text.sequences import Batch
from tests.architectures import ARCHITECTURES
from tests.kernels.harness import cut, lens_of, random_rows, sequences_of
from tests.tiny import tiny_gpt2, tiny_llama

WRITTEN_OUT = {"bloom", "gemma2", "mpt"}
"""Models without the fused kernel: their own logits are seen, queries and keys are not."""

# Another kernel sums in another order; probabilities near 1e-7 change H by about 1e-6.
TOLERANCE = 1e-5
# bfloat16 models: eager rounds logits to 8 bits (0.02 at a logit of 5) and each probability to
# 0.4 %, the recomputation neither; entropies of up to 2.5 nats differ by a few hundredths.
TOLERANCE_BFLOAT16 = 0.1


@dataclasses.dataclass(frozen=True)
class Keep:
    """Keeps entropies, logits, probabilities and the model's residual."""

    def __call__(self, point: Point, chunk: AttentionChunk) -> Mapping[str, Tensor]:
        assert point.layer == chunk.layer
        assert chunk.logits.dtype == chunk.probabilities.dtype
        visible = chunk.visible.expand_as(chunk.logits)
        assert (chunk.logits[~visible] == -torch.inf).all()
        assert torch.equal(chunk.keys, chunk.visible.sum(-1))
        return {
            "entropy": torch.special.entr(chunk.probabilities).sum(-1),
            "logits": chunk.logits,
            "probabilities": chunk.probabilities,
            "visible": visible,
            "residual": chunk.residual,
        }


@cache
def opened(architecture: str) -> Lens:
    return lens_of(ARCHITECTURES[architecture](), architecture)


def batch_of(rows: list[list[int]], *, extra: int = 0) -> Batch:
    (batch,) = cut(sequences_of(rows, extra=extra), len(rows))
    return batch


@torch.inference_mode()
def recorded(lens: Lens, batch: Batch) -> dict[str, Mapping[str, Tensor]]:
    into: dict[str, Mapping[str, Tensor]] = {}
    tree = plain_tree(lens)
    with recording_attention(tree, Keep(), into):
        run_model(tree, batch, logits=False)
    return into


@torch.inference_mode()
def eager_weights(model: PreTrainedModel, row: list[int]) -> tuple[Tensor, ...]:
    """Attention weights of one unpadded sequence as transformers returns them."""
    if model._supports_sdpa:
        model.set_attn_implementation("eager")
    if model.config._attn_implementation != "eager":
        model.config._attn_implementation = "eager"  # Falcon, which cannot be set
    out = model(input_ids=torch.tensor([row]), output_attentions=True, use_cache=False)
    return out.attentions


@pytest.mark.architecture_cell("attention entropy")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_entropies_equal_those_of_eager_attention_weights(architecture: str) -> None:
    rows = random_rows(lengths=(13, 4, 9))
    found = recorded(opened(architecture), batch_of(rows, extra=2))
    assert list(found) == ["attention.0", "attention.1"]
    other = ARCHITECTURES[architecture]()
    for index, row in enumerate(rows):
        for layer, weights in enumerate(eager_weights(other, row)):
            expected = torch.special.entr(weights[0].double()).sum(-1)
            entropy = found[f"attention.{layer}"]["entropy"][index, :, : len(row)]
            torch.testing.assert_close(entropy.double(), expected, rtol=0, atol=TOLERANCE)
            # Padding is not attended to, and nothing outside a window is.
            seen = found[f"attention.{layer}"]["probabilities"][index, :, : len(row)]
            assert torch.equal(seen[..., : len(row)] > 0, weights[0] > 0)
            assert (seen[..., len(row) :] == 0).all()
    assert max(float(kept["residual"].max()) for kept in found.values()) < 1e-6


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_model_computes_the_same_bits_and_is_left_as_it_was(architecture: str) -> None:
    lens = opened(architecture)
    model, ids = lens.model, torch.tensor(random_rows(lengths=(11,)))
    config = model.config.to_dict()
    into: dict[str, Mapping[str, Tensor]] = {}
    with torch.inference_mode():
        plain = model(input_ids=ids, use_cache=False)[0]
        with recording_attention(plain_tree(lens), Keep(), into):
            hooked = model(input_ids=ids, use_cache=False)[0]
    assert len(into) == 2
    assert torch.equal(plain, hooked)
    assert hook_count(model) == 0
    assert _len_torch_function_stack() == 0
    assert model.config.to_dict() == config


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2", "falcon-new", "bert"])
def test_bfloat16_models_give_entropies_within_their_rounding(architecture: str) -> None:
    row = random_rows(lengths=(12,))[0]
    lens = lens_of(ARCHITECTURES[architecture]().to(torch.bfloat16), "half")
    found = recorded(lens, batch_of([row]))
    other = ARCHITECTURES[architecture]().to(torch.bfloat16)
    for layer, weights in enumerate(eager_weights(other, row)):
        kept = found[f"attention.{layer}"]
        assert kept["logits"].dtype == torch.float32
        expected = torch.special.entr(weights[0].double()).sum(-1)
        torch.testing.assert_close(
            kept["entropy"][0].double(), expected, rtol=0, atol=TOLERANCE_BFLOAT16
        )
        assert float(kept["residual"].max()) < 2e-2


def test_double_models_are_recorded_in_double() -> None:
    row = random_rows(lengths=(12,))[0]
    found = recorded(lens_of(tiny_llama().double()), batch_of([row]))
    (weights, _) = eager_weights(tiny_llama().double(), row)
    kept = found["attention.0"]
    assert kept["logits"].dtype == torch.float64
    assert float(kept["residual"].max()) < 1e-14
    # Eager attention takes the softmax in float32.
    torch.testing.assert_close(kept["probabilities"], weights.double(), rtol=0, atol=1e-7)


def test_chunks_are_joined_along_rows_and_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(random_rows(lengths=(12, 7, 12, 3, 5)))
    matrix = 4 * 12 * 12
    whole = recorded(opened("mistral"), batch)
    for budget in (1, 3 * matrix, 9 * matrix):
        monkeypatch.setattr(attention, "CHUNK_BYTES_CPU", budget)
        pieces = recorded(opened("mistral"), batch)
        for name, kept in whole.items():
            for key, tensor in kept.items():
                torch.testing.assert_close(pieces[name][key], tensor, msg=f"{name} {key} {budget}")


@pytest.mark.parametrize(
    ("matrices", "size"), [(0.5, (1, 1)), (3, (1, 3)), (4, (1, 4)), (9, (2, 4)), (99, (5, 4))]
)
def test_a_chunk_is_whole_rows_or_heads_of_one_row(
    matrices: float, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "CHUNK_BYTES_CPU", int(matrices * 4 * 100))
    assert attention.chunk_size(5, 4, 100, torch.empty(0)) == size


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_single_token_attends_to_itself(architecture: str) -> None:
    found = recorded(opened(architecture), batch_of([[5], [3]]))
    for kept in found.values():
        assert kept["probabilities"].shape == (2, 4, 1, 1)
        assert (kept["probabilities"] == 1).all()
        assert float(kept["residual"].max()) < 1e-6


def test_grouped_heads_read_their_own_keys_and_the_scale_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 6, 5, 8, generator=generator)
    key, value = torch.randn(2, 2, 2, 5, 8, generator=generator).unbind(0)
    arguments: dict[str, Any] = {"is_causal": True, "scale": 0.7, "enable_gqa": True}
    output = F.scaled_dot_product_attention(query, key, value, **arguments)
    source = Fused.of_call(output, query, key, value, **arguments)
    rows, heads = slice(1, 2), slice(2, 5)
    logits = source.logits(rows, heads)
    for place, head in enumerate(range(2, 5)):
        expected = 0.7 * query[1, head] @ key[1, head // 3].T
        torch.testing.assert_close(logits[0, place].tril(), expected.tril())
    assert float(source.residual(rows, heads, logits.softmax(-1)).max()) < 1e-6
    # The residual sees another scale.
    wrong = dataclasses.replace(source, scale=0.5)
    assert float(wrong.residual(rows, heads, wrong.logits(rows, heads).softmax(-1)).max()) > 1e-3


def test_additive_masks_bias_the_logits_and_hide() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 4, 5, 8, generator=generator).unbind(0)
    bias = torch.randn(1, 4, 5, 5, generator=generator)
    hidden = ~torch.ones(5, 5, dtype=torch.bool).tril()
    mask = bias.masked_fill(hidden, torch.finfo(torch.float32).min)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    source = Fused.of_call(output, query, key, value, attn_mask=mask)
    every = slice(0, 1), slice(0, 4)
    logits = source.logits(*every)
    expected = (query @ key.mT / 8**0.5 + bias).masked_fill(hidden, -torch.inf)
    torch.testing.assert_close(logits, expected)
    assert torch.equal(source.visible(slice(0, 1))[0, 0], ~hidden)
    assert float(source.residual(*every, logits.softmax(-1)).max()) < 1e-6


def test_a_head_with_nan_does_not_decide_what_is_visible() -> None:
    scores = torch.zeros(1, 2, 3, 3).masked_fill(
        ~torch.ones(3, 3, dtype=torch.bool).tril(), torch.finfo(torch.float32).min
    )
    scores[0, 0, 2] = torch.nan
    source = Explicit.of_call(scores.softmax(-1), scores, torch.float32)
    assert source.counts.tolist() == [[[1, 2, 3]]]


class Linear(nn.Module):
    """Attention that normalises without a softmax."""

    def forward(self, hidden_states: Tensor, **_others: Any) -> tuple[Tensor, None]:
        return hidden_states, None


class Twice(nn.Module):
    """Attention that runs the fused kernel twice."""

    def forward(self, hidden_states: Tensor, **_others: Any) -> tuple[Tensor, None]:
        x = hidden_states[:, None]
        F.scaled_dot_product_attention(x, x, x)
        return F.scaled_dot_product_attention(x, x, x)[:, 0], None


@pytest.mark.parametrize(
    ("other", "message"), [(Linear(), "no attention was seen in block 1"), (Twice(), "block 1")]
)
def test_attention_that_is_not_seen_exactly_once_is_an_error(
    other: nn.Module, message: str
) -> None:
    model = tiny_gpt2()
    model.set_submodule("transformer.h.1.attn", other)
    lens = dataclasses.replace(opened("gpt2"), model=model)
    with pytest.raises(HookMismatch, match=message):
        recorded(lens, batch_of([[1, 2, 3]]))
    assert hook_count(model) == 0
    assert _len_torch_function_stack() == 0


def _softmax(*_arguments: Any) -> None:
    torch.zeros(1, 1, 2, 2).softmax(-1)


def test_softmax_outside_attention_is_not_taken_for_it() -> None:
    lens = opened("bloom")
    block = family_of(lens.model).blocks
    mlp = lens.model.get_submodule(f"{block}.0.mlp")
    handle = mlp.register_forward_hook(_softmax)
    try:
        assert len(recorded(lens, batch_of([[1, 2, 3]]))) == 2
    finally:
        handle.remove()
