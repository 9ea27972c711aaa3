"""Per-token values of norms whose input is laid out in different ways."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from normlens.errors import VerificationError
from normlens.models.families import family_of
from normlens.models.layout import by_position, token_shape
from normlens.models.lens import Layout
from normlens.models.sites import find_places
from normlens.models.verify import verify
from tests.architectures import ARCHITECTURES
from tests.models.expected_architectures import opened


def test_an_input_with_other_axes_than_the_row_says_is_refused() -> None:
    model = ARCHITECTURES["qwen3"]()
    places = find_places(model, family_of(model))
    wrong = [replace(place, layout=Layout.BATCH_POS) for place in places]
    with pytest.raises(VerificationError, match=r"0\.q .*\(2, 16, 4, 8\).*'batch pos width'"):
        verify(model, wrong)


@pytest.mark.parametrize("layout", Layout)
def test_by_position_is_batch_pos_head(layout: Layout) -> None:
    heads = 5 if layout.per_head else 1
    site = replace(opened("gpt2").sites[0], layout=layout, heads=heads)
    wanted = torch.arange(2 * 3 * heads).reshape(2, 3, heads)
    given = wanted.transpose(1, 2) if layout is Layout.BATCH_HEAD_POS else wanted
    given = given.reshape(token_shape(site, 2, 3))
    moments = by_position(site, torch.stack([given, -given]), 2, 3)
    assert torch.equal(moments, torch.stack([wanted, -wanted]).reshape(moments.shape))
    assert moments.shape == ((2, 2, 3, 5) if layout.per_head else (2, 2, 3))
