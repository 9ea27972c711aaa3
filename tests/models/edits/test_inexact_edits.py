"""Freezing scales and swapping kinds: what is kept, and that the change is reported."""

from __future__ import annotations

import math

import pytest
import torch

from normlens.errors import NotApplicable, UsageError
from normlens.hooks import Hook
from normlens.models import gain_and_bias, open_model
from normlens.models.edits import Freeze, SwapKind, convert, freeze_scale, swap_kind
from normlens.models.edits.swap import BY_LENGTH, WITHOUT_AFFINE, why_no_swap
from normlens.norms import FixedScale, NormKind
from tests.kernels.harness import random_rows, sequences_of
from tests.models.edits.conversions import error, logits
from tests.models.expected_architectures import Store, opened, run
from tests.tiny import tiny_gpt2

SEQUENCES = sequences_of(random_rows(3, (9, 9, 9, 4)))
SWAPPABLE = [kind for kind in NormKind if why_no_swap(kind) is None]


def test_a_given_constant() -> None:
    lens = opened("gpt2")
    (check,) = convert(lens, Freeze(2.5, "0.pre_mlp,final")).checks
    frozen = freeze_scale(lens, 2.5, "0.pre_mlp,final")
    assert not check.exact and math.isnan(check.tolerance) and check.error > 1e-3
    kinds = {site.label for site in frozen.sites if site.spec.kind is NormKind.FIXED_SCALE}
    assert kinds == {"0.pre_mlp", "final"}
    for site in frozen.sites:
        if site.label in kinds:
            assert site.spec.fixed_scale == 2.5 and site.spec.centred
            for new, old in zip(
                gain_and_bias(frozen, site), gain_and_bias(lens, site), strict=True
            ):
                assert new is not None and old is not None and torch.equal(new, old)


def oracle_scales() -> torch.Tensor:
    """``sqrt(var + eps)`` of what the first MLP norm meets, token by token."""
    lens = opened("gpt2")
    store = Store()
    rows = []
    for ids, length in zip(SEQUENCES.ids, SEQUENCES.lengths, strict=True):
        hook = Hook(lens.model.get_submodule("transformer.h.0.ln_2"), "input", store)
        from normlens.hooks import hooked

        with hooked(lens.model, [hook]), torch.inference_mode():
            lens.model(input_ids=ids[None, : int(length)])
        x = store.value.double()[0]
        scale = (x.var(-1, unbiased=False) + 3e-4).sqrt()
        rows.append(torch.nn.functional.pad(scale, (0, 9 - int(length)), value=torch.nan))
    return torch.stack(rows)


def test_measured_constants_are_those_of_the_text() -> None:
    lens, scales = opened("gpt2"), oracle_scales()
    site = "0.pre_mlp"

    def spec(how):
        frozen = freeze_scale(lens, how, site, sequences=SEQUENCES)
        return next(s.spec for s in frozen.sites if s.label == site)

    rest = scales[:, 1:].nanmean().item()
    assert spec("mean").fixed_scale == pytest.approx(rest, rel=1e-5)
    assert spec("apart").position_scales == pytest.approx(
        (scales[:, 0].mean().item(), rest), rel=1e-5
    )
    by_position = scales.nanmean(0)
    assert spec("position").position_scales == pytest.approx(tuple(by_position.tolist()), rel=1e-5)
    assert abs(by_position[0].item() / rest - 1) > 1e-3, "position 0 must differ to be told apart"


def test_freezing_to_the_scale_of_a_constant_input_changes_nothing() -> None:
    """With one token at every position the mean per position is every token's own scale."""
    lens = open_model(tiny_gpt2(4), tokenizer=None)
    sequences = sequences_of([[7, 8, 9, 10, 11]] * 3)
    frozen = freeze_scale(lens, "position", sequences=sequences)
    ids = sequences.ids[:1]
    torch.testing.assert_close(logits(frozen, ids), logits(lens, ids), rtol=1e-4, atol=1e-5)
    other = torch.tensor([[900, 901, 902, 903, 904]])
    assert (logits(frozen, other) - logits(lens, other)).abs().max() > 1e-3


def test_names_tell_edits_apart() -> None:
    other = sequences_of(random_rows(4, (9, 9)))
    names = {Freeze("mean", "all", text).name for text in (SEQUENCES, other)}
    assert len(names) == 2
    assert Freeze(2.0, "final").name == "freeze=2.0@final"


def test_what_cannot_be_frozen() -> None:
    lens = opened("gpt2")
    once = freeze_scale(lens, 2.0, "final")
    with pytest.raises(NotApplicable, match="no live scale"):
        freeze_scale(once, 2.0, "final")
    assert sum(s.spec.fixed_scale == 3 for s in freeze_scale(once, 3.0).sites) == 4
    with pytest.raises(UsageError, match="positive"):
        freeze_scale(lens, 0.0)
    with pytest.raises(UsageError, match="needs text"):
        freeze_scale(lens, "mean")
    with pytest.raises(NotApplicable, match="scale per position has no place"):
        freeze_scale(opened("opt"), "position", "pre_mlp", sequences=SEQUENCES)
    with pytest.raises(NotApplicable, match="gain of its own"):
        freeze_scale(opened("cohere"), 1.0, "q")
    frozen = freeze_scale(opened("qwen3"), "mean", "q,k", sequences=SEQUENCES)
    assert isinstance(frozen.module(frozen.sites[1]), FixedScale)


@pytest.mark.kind_cell("swap")
@pytest.mark.parametrize("kind", SWAPPABLE)
def test_swapping_keeps_gain_and_bias(kind: NormKind) -> None:
    lens = opened("gpt2")
    done = convert(lens, SwapKind(kind, "pre_mlp"))
    assert (done.checks[0].error > 1e-3) == (kind is not NormKind.LAYER_NORM)
    for old, new in zip(lens.sites, done.lens.sites, strict=True):
        assert new.spec.kind is (kind if "pre_mlp" in new.label else NormKind.LAYER_NORM)
        if new.label != "0.pre_mlp" or kind in WITHOUT_AFFINE:
            continue
        (gamma, beta), (was, offset) = gain_and_bias(done.lens, new), gain_and_bias(lens, old)
        assert gamma is not None and was is not None and beta is not None and offset is not None
        wanted = was * 32**0.5 if kind in BY_LENGTH else was
        wanted = wanted.mean().expand(32) if kind is NormKind.SCALE_NORM else wanted
        torch.testing.assert_close(gamma, wanted, rtol=1e-6, atol=0)
        torch.testing.assert_close(beta, offset, rtol=1e-6, atol=0)
        if kind.eps_under_root:
            assert new.spec.eps == old.spec.eps


@pytest.mark.kind_cell("swap", row="batch_norm")
@pytest.mark.kind_cell("swap", row="power_norm")
@pytest.mark.kind_cell("swap", row="unified_norm")
@pytest.mark.kind_cell("swap", row="fixed_scale")
def test_kinds_that_need_more_than_a_swap(record_property) -> None:
    for kind in NormKind:
        if kind not in SWAPPABLE:
            with pytest.raises(UsageError, match=f"no swap to {kind.value}"):
                swap_kind(opened("gpt2"), kind)
    record_property("not_applicable", "it needs measured or trained constants")


def test_a_swapped_norm_keeps_the_size_of_its_output() -> None:
    lens = opened("gpt2")
    sizes = {}
    for kind in (NormKind.RMS_NORM, NormKind.L2_NORM, NormKind.L1_NORM):
        new = swap_kind(lens, kind, "0.pre_attn")
        store = Store()
        run(new, [Hook(new.module(new.sites[0]), "output", store)])
        sizes[kind] = store.value.norm().item()
    assert max(sizes.values()) / min(sizes.values()) < 1.5
    assert error(lens, swap_kind(lens, NormKind.LAYER_NORM)) < 1e-6
