"""``scale`` of every architecture, streamed over padded batches, against single sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from normlens import runner
from normlens.hooks import Hook
from normlens.models.layout import by_position
from normlens.norms import NormKind
from tests.architectures import ARCHITECTURES
from tests.kernels.harness import random_rows, sequences_of
from tests.models.expected_architectures import EXPECTED, Store, opened, run
from tests.oracles import norm as oracle


def naive_scales(architecture: str, row: list[int]) -> dict[str, np.ndarray]:
    """Scale of every site for one unpadded sequence: ``[pos head]``, token by token."""
    lens, expected = opened(architecture), EXPECTED[architecture]
    constants = {"centred": expected.kind is NormKind.LAYER_NORM, "eps": expected.eps}
    inputs = {site.label: Store() for site in lens.sites}
    hooks = [Hook(lens.module(s), "input", inputs[s.label], s.label) for s in lens.sites]
    run(lens, hooks, torch.tensor([row]))
    scales = {}
    for site in lens.sites:
        x = inputs[site.label].value
        tokens = x.reshape(-1, x.shape[-1]).tolist()
        values: Tensor = torch.tensor([oracle.scale(token, **constants) for token in tokens])
        placed = by_position(site, values.reshape(x.shape[:-1]), 1, len(row))
        scales[site.label] = placed.reshape(len(row), -1).numpy()
    return scales


@pytest.mark.architecture_cell("scale")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_streamed_scales_equal_the_naive_ones(architecture: str) -> None:
    rows = random_rows()
    (result,) = runner.run(["scale"], opened(architecture), sequences_of(rows, extra=2))
    assert not result.not_applicable
    table = result.tables["scale"].set_index(["site", "group"])
    naive = [naive_scales(architecture, row) for row in rows]
    for site in opened(architecture).sites:
        first = np.concatenate([scales[site.label][:1].ravel() for scales in naive])
        rest = np.concatenate([scales[site.label][1:].ravel() for scales in naive])
        for group, values in (("first", first), ("rest", rest)):
            found = table.loc[(site.label, group)]
            assert found["n"] == len(values), (site.label, group)
            assert found["mean"] == pytest.approx(values.mean(), rel=1e-5)
            assert found["maximum"] == pytest.approx(values.max(), rel=1e-5)
            assert found["sd"] == pytest.approx(values.std(), rel=1e-3, abs=1e-6)
