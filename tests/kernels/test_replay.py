"""Replaying the scales of a clean run."""

from __future__ import annotations

import pytest
import torch

from normlens.errors import HookMismatch, UsageError
from normlens.hooks import Hook, hook_count, hooked
from normlens.kernels.replay import record_scales, replayed_scales
from normlens.models.edits import freeze_scale
from tests.models.edits.conversions import IDS, logits
from tests.models.expected_architectures import opened


@pytest.mark.parametrize("architecture", ["gpt2", "qwen3", "cohere", "opt", "decoder"])
def test_replaying_a_clean_run_changes_nothing(architecture: str) -> None:
    lens = opened(architecture)
    clean = logits(lens)
    scales = record_scales(lens, IDS)
    with replayed_scales(lens, scales):
        again = logits(lens)
    assert (again - clean).abs().max() <= 1e-5 * clean.abs().max()
    with replayed_scales(lens, {site: 1.1 * scale for site, scale in scales.items()}):
        assert (logits(lens) - clean).abs().max() > 1e-3
    assert hook_count(lens.model) == 0
    assert torch.equal(logits(lens), clean)


def test_a_model_with_replayed_final_scale_is_linear_in_the_last_branch() -> None:
    """Doubling a change of the residual stream doubles the change of the logits."""
    lens = opened("gpt2")
    last = lens.model.get_submodule("transformer.h.1.mlp.c_proj")
    scales = {s: v for s, v in record_scales(lens, IDS).items() if s.label == "final"}
    change = torch.randn(32, generator=torch.Generator().manual_seed(2))

    def moved(factor: float, replay: bool) -> torch.Tensor:
        with hooked(lens.model, [Hook(last, "output", lambda y: y + factor * change)]):
            if not replay:
                return logits(lens)
            with replayed_scales(lens, scales):
                return logits(lens)

    for replay in (True, False):
        one, two = (moved(factor, replay) - logits(lens) for factor in (1.0, 2.0))
        bend = ((two - 2 * one).abs().max() / two.abs().max()).item()
        assert (bend < 1e-4) == replay


def test_misuse() -> None:
    lens = opened("gpt2")
    with (
        pytest.raises(HookMismatch, match="fired 0"),
        replayed_scales(lens, record_scales(lens, IDS)),
    ):
        pass
    once = freeze_scale(lens, 2.0, "final")
    with pytest.raises(UsageError, match="no live scale"):
        record_scales(once, IDS, [once.sites[-1]])
    assert [site.label for site in record_scales(lens, IDS, lens.sites[:1])] == ["0.pre_attn"]
