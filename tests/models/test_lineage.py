"""Weight cosine against the closed form, and what counts as related."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from normlens.models import Lens, open_model, related, weight_cosine
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tiny_llama


def lens(model: torch.nn.Module) -> Lens:
    return open_model(model, tokenizer=None)  # pyright: ignore[reportArgumentType]


def test_closed_form() -> None:
    a, b = tiny_gpt2(1), tiny_gpt2(2)
    stacked = [
        torch.cat([p.double().flatten() for p in model.parameters() if p.ndim > 1])
        for model in (a, b)
    ]
    expected = torch.nn.functional.cosine_similarity(*stacked, dim=0).item()
    assert weight_cosine(lens(a), lens(b)) == pytest.approx(expected, rel=1e-12)


def test_a_model_is_parallel_to_itself_and_to_a_multiple() -> None:
    a, b = tiny_gpt2(1), tiny_gpt2(1)
    for parameter in b.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(0.5)
    assert weight_cosine(lens(a), lens(a)) == pytest.approx(1, abs=1e-12)
    assert weight_cosine(lens(a), lens(b)) == pytest.approx(1, abs=1e-7)


def test_gains_do_not_count() -> None:
    a = tiny_gpt2(1)
    b = copy.deepcopy(a)
    for parameter in b.parameters():
        if parameter.ndim == 1:
            parameter.data.neg_()
    assert weight_cosine(lens(a), lens(b)) == pytest.approx(1, abs=1e-12)


def test_a_fine_tuned_model_is_related_whatever_its_norms() -> None:
    base = tiny_gpt2(1)
    tuned = tiny_fixed_scale(1)
    for parameter in tuned.parameters():
        parameter.data += 0.05 * parameter.data.std() * torch.randn_like(parameter)
    assert related(lens(base), lens(tuned))


def test_independent_models_are_not_related() -> None:
    """Their embeddings share a mean here, as those of trained models do."""
    assert abs(weight_cosine(lens(tiny_gpt2(1)), lens(tiny_gpt2(2)))) > 0.01
    assert not related(lens(tiny_gpt2(1)), lens(tiny_gpt2(2)))


def test_nothing_shared_is_no_number() -> None:
    a, b = lens(tiny_gpt2(1)), lens(tiny_llama(1))
    assert math.isnan(weight_cosine(a, b))
    assert not related(a, b)
