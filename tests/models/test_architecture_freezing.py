"""``freeze-sweep`` on every architecture: frozen to what it is, nothing moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from normlens import runner
from normlens.hooks import hook_count
from normlens.kernels import freeze_sweep
from normlens.kernels.freezing import removal_order
from tests.architectures import ARCHITECTURES
from tests.kernels.harness import cut, random_rows, sequences_of
from tests.models.expected_architectures import opened


@pytest.mark.architecture_cell("freeze sweep")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_freezing_every_scale_to_the_live_one_is_the_identity(
    architecture: str, record_property: Callable[[str, object], None]
) -> None:
    lens, corpus = opened(architecture), sequences_of(random_rows(), extra=2)
    (result,) = runner.run(["freeze-sweep"], lens, corpus)
    if result.not_applicable:
        (reason,) = result.not_applicable.values()
        record_property("not_applicable", reason)
        return
    assert result.passed
    assert set(result.tables["sweep"]["site"]) == {s.label for s in removal_order(lens.sites)}
    assert hook_count(lens.model) == 0


@pytest.mark.parametrize("architecture", ["qwen3", "cohere", "stablelm-qk", "gemma3", "opt"])
def test_a_wrong_scale_of_any_norm_moves_the_logits(architecture: str) -> None:
    lens = opened(architecture)
    batch = cut(sequences_of(random_rows()), 5)[0]
    sites = removal_order(lens.sites)
    live = freeze_sweep._live_scales(lens, sites, batch)
    intact = freeze_sweep._logits(lens, batch, {})
    bound = 1e-5 * intact.abs().max()
    assert (freeze_sweep._logits(lens, batch, live) - intact)[batch.mask].abs().max() <= bound
    for site in sites:
        token = batch.mask[..., None] if live[site].ndim == 3 else batch.mask
        off = {**live, site: torch.where(token, live[site] * 1.05, live[site])}
        moved = freeze_sweep._logits(lens, batch, off) - intact
        assert moved.abs().max() > bound, site.label
