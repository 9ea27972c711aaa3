"""The pass: batches, moments, shards, resume. What it must not do: see padding, lose a shard."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from normlens.capture.batches import batches
from normlens.capture.corpus_pass import map_shards
from normlens.capture.forward import input_moments, observe
from normlens.capture.shards import SHARD_SEQUENCES, ShardStore, Step, ranges
from normlens.capture.state import State
from normlens.capture.tree import plain_tree
from normlens.catalog import Need
from normlens.errors import StoreMismatch
from normlens.hooks import hook_count
from normlens.models import Lens, open_model
from normlens.text.sequences import Batch, Sequences
from tests.tiny import tiny_gpt2, tiny_llama


def corpus(lengths: list[int], seed: int = 0, pad: int = 0) -> Sequences:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 4096, (len(lengths), max(lengths)), generator=generator)
    n = torch.tensor(lengths)
    ids[torch.arange(ids.shape[1])[None] >= n[:, None]] = pad
    documents = tuple(f"d{i}" for i in range(len(lengths)))
    return Sequences(ids, n, torch.arange(len(lengths)), documents, "random", "none", pad, "")


def all_batches(sequences: Sequences, size: int) -> list[Batch]:
    weights = torch.ones(2, len(sequences.document_ids), dtype=torch.float64)
    return list(batches(sequences, 0, len(sequences), size=size, device="cpu", weights=weights))


@pytest.fixture(scope="module", params=[tiny_gpt2, tiny_llama])
def lens(request: pytest.FixtureRequest) -> Lens:
    return open_model(request.param(1), name="tiny", tokenizer=None)


def test_masks_partition_the_tokens() -> None:
    sequences = corpus([5, 9, 2])
    (batch,) = all_batches(sequences, 3)
    assert batch.mask.sum().item() == 16
    assert batch.first.sum().item() == 3
    assert (batch.first & batch.rest).sum().item() == 0
    assert (batch.first | batch.rest).equal(batch.mask)
    assert batch.has_next.sum().item() == 16 - 3
    small = all_batches(sequences, 1)
    assert [b.ids.shape[1] for b in small] == [5, 9, 2], "a batch is cut to its longest sequence"


def test_moments_are_those_of_the_norms_input(lens: Lens) -> None:
    (batch,) = all_batches(corpus([12, 12]), 2)
    seen: dict[str, Tensor] = {}
    handles = [
        lens.module(site).register_forward_pre_hook(
            lambda _m, args, label=site.label: seen.__setitem__(label, args[0].double())
        )
        for site in lens.sites
    ]
    with torch.no_grad():
        lens.model(input_ids=batch.ids)
    for handle in handles:
        handle.remove()
    moments = observe(plain_tree(lens), batch, frozenset({Need.NORM_MOMENTS})).norm_moments
    assert set(moments) == {site.label for site in lens.sites}
    for label, x in seen.items():
        mean, variance = moments[label].double()
        torch.testing.assert_close(mean, x.mean(-1), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(variance, x.var(-1, correction=0), rtol=1e-5, atol=1e-6)
    assert hook_count(lens.model) == 0


def test_moments_of_half_precision_are_float32() -> None:
    x = torch.full((1, 4), 300.0, dtype=torch.float16) * torch.tensor([1.0, -1, 1, -1]).half()
    assert input_moments(x)[1].item() == pytest.approx(90_000.0), "float16 would overflow"


def test_padding_changes_no_real_token(lens: Lens) -> None:
    short = corpus([7, 4], pad=0)
    other_pad = corpus([7, 4], pad=99)
    alone = all_batches(short, 1)
    (together,) = all_batches(other_pad, 2)
    needs = frozenset({Need.NORM_MOMENTS, Need.LOGITS})
    wide = observe(plain_tree(lens), together, needs)
    for row, batch in enumerate(alone):
        narrow = observe(plain_tree(lens), batch, needs)
        n = batch.ids.shape[1]
        assert narrow.logits is not None
        assert wide.logits is not None
        torch.testing.assert_close(wide.logits[row, :n], narrow.logits[0], rtol=1e-4, atol=1e-4)
    shifted = wide.logits[0, :4]
    assert not torch.allclose(shifted, wide.logits[1, :4], atol=1e-2), "rows must differ at all"


def test_the_head_is_not_run_unless_asked_for(lens: Lens) -> None:
    (batch,) = all_batches(corpus([6]), 1)
    calls: list[int] = []
    handle = lens.model.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))
    observe(plain_tree(lens), batch, frozenset({Need.NORM_MOMENTS}))
    assert not calls
    observe(plain_tree(lens), batch, frozenset({Need.LOGITS}))
    assert calls
    handle.remove()


def count_tokens(batch: Batch) -> State:
    state = State()
    state.declare("tokens", batch.mask.sum())
    state.declare("ids", (batch.ids * batch.mask).sum().double())
    return state


def mapped(
    sequences: Sequences, store: ShardStore, size: int = 7, compute=count_tokens, report=None
) -> State:
    weights = torch.ones(1, len(sequences.document_ids), dtype=torch.float64)
    return map_shards(
        "count", sequences, compute, store=store, batch_size=size, device="cpu",
        weights=weights, report=report or (lambda _: None),
    )  # fmt: skip


def test_shards_cover_every_sequence_once() -> None:
    assert [stop - start for _, start, stop in ranges(2 * SHARD_SEQUENCES + 3)] == [64, 64, 3]
    sequences = corpus([3] * 150)
    for size in (1, 7, 64, 1000):
        assert mapped(sequences, ShardStore(None, {}), size).tensors["tokens"].item() == 450


def test_resume_skips_what_is_stored_and_ends_the_same(tmp_path: Path) -> None:
    sequences = corpus([3] * 150)
    whole = mapped(sequences, ShardStore(None, {"a": 1}))
    store = ShardStore(tmp_path, {"a": 1})
    calls: list[int] = []

    def failing(batch: Batch) -> State:
        if int(batch.index[0]) >= 128:
            raise KeyboardInterrupt
        return count_tokens(batch)

    with pytest.raises(KeyboardInterrupt):
        mapped(sequences, store, compute=failing)

    def counting(batch: Batch) -> State:
        calls.append(int(batch.index[0]))
        return count_tokens(batch)

    steps: list[Step] = []
    again = mapped(sequences, store, compute=counting, report=steps.append)
    assert min(calls) == 128
    assert [step.resumed for step in steps] == [True, True, False]
    for name, value in whole.tensors.items():
        assert again.tensors[name].equal(value)


def test_a_damaged_or_foreign_shard_is_refused(tmp_path: Path) -> None:
    sequences = corpus([3] * 70)
    store = ShardStore(tmp_path, {"a": 1})
    mapped(sequences, store)
    assert store.directory is not None
    shard = store.directory / "count" / "shard-00000.safetensors"
    other = ShardStore(tmp_path, {"a": 2})
    mapped(sequences, other)
    assert other.directory is not None
    shard.write_bytes((other.directory / "count" / "shard-00000.safetensors").read_bytes())
    with pytest.raises(StoreMismatch, match="another computation"):
        mapped(sequences, store)
    shard.write_bytes(b"short")
    with pytest.raises(StoreMismatch, match="unreadable"):
        mapped(sequences, store)
