"""Batches are a function of corpus, seed and step."""

from __future__ import annotations

import pytest
import torch

from normlens.errors import BadText, UsageError
from normlens.training.recipe import load_recipe
from normlens.training.stream import TokenStream, cut
from tests.tiny import tokenizer
from tests.training.small import excerpts

CONTEXT = 16
DOCUMENTS = [excerpts()[0][:1500], excerpts()[1][:900]]


def stream(
    documents: list[str] = DOCUMENTS, batch_size: int = 3, data_seed: int = 4
) -> TokenStream:
    windows = cut(documents, tokenizer(), CONTEXT)
    return TokenStream(windows, tokenizer(), batch_size=batch_size, data_seed=data_seed)


def test_windows_are_the_documents_cut_up() -> None:
    found = stream()
    expected = []
    for document in DOCUMENTS:
        ids = tokenizer()(document, add_special_tokens=False)["input_ids"]
        expected += [ids[i : i + 15] for i in range(0, len(ids) - 14, 15)]
    assert found.windows.tolist() == expected


def test_an_epoch_shows_every_window_once_with_bos_first() -> None:
    found = stream(batch_size=1)
    count = len(found.windows)
    rows = torch.cat([found.batch(step) for step in range(count)])
    assert (rows[:, 0] == tokenizer().bos_token_id).all()
    assert sorted(rows[:, 1:].tolist()) == sorted(found.windows.tolist())
    assert rows[:, 1:].tolist() != found.windows.tolist()
    second = torch.cat([found.batch(step) for step in range(count, 2 * count)])
    assert sorted(second.tolist()) == sorted(rows.tolist()) and not torch.equal(second, rows)


def test_batches_may_straddle_epochs_and_come_in_any_order() -> None:
    single, triple = stream(batch_size=1), stream(batch_size=3)
    steps = list(range(len(single.windows)))
    backwards = {step: triple.batch(step) for step in reversed(steps)}
    for step in steps:
        rows = torch.cat([single.batch(3 * step + i) for i in range(3)])
        assert torch.equal(backwards[step], rows)


def test_the_order_depends_on_the_data_seed_alone() -> None:
    assert torch.equal(stream(data_seed=4).batch(1), stream(data_seed=4).batch(1))
    assert not torch.equal(stream(data_seed=5).batch(1), stream(data_seed=4).batch(1))


def test_the_bundled_fine_tunings_see_equal_batches() -> None:
    recipes = [load_recipe(f"books-{name}") for name in ("control", "aux", "lnfree")]
    streams = [stream(batch_size=r.batch_size, data_seed=r.data_seed) for r in recipes]
    for step in (0, 1, 7):
        assert torch.equal(streams[0].batch(step), streams[1].batch(step))
        assert torch.equal(streams[0].batch(step), streams[2].batch(step))
    first = load_recipe("books-ln")
    other = stream(batch_size=first.batch_size, data_seed=first.data_seed)
    assert not torch.equal(other.batch(0), streams[0].batch(0))


def test_too_short_a_text_is_refused() -> None:
    with pytest.raises(BadText, match="15 tokens"):
        stream(["a short one"])


def test_a_tokenizer_without_bos_is_refused() -> None:
    without = tokenizer()
    without.bos_token = None
    with pytest.raises(UsageError, match="no BOS"):
        TokenStream(stream().windows, without, batch_size=1, data_seed=0)
