"""Folding, Pre-RMSNorm, Pre-CRMSNorm, rotating, untying: what they leave behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normlens.errors import NotApplicable, VerificationError
from normlens.hooks import Hook, hooked
from normlens.models import Lens, gain_and_bias, open_model
from normlens.models.edits import (
    Fold,
    Rotate,
    convert,
    fold,
    replace_norms,
    rotate,
    swap_kind,
    to_crms,
    to_rms,
    untie,
)
from normlens.models.edits import rms as rms_module
from normlens.models.edits.rotate import random_rotation
from normlens.norms import NormKind, NormSpec
from tests.models.edits.conversions import IDS, error, logits
from tests.models.expected_architectures import Store, opened
from tests.tiny import tiny_fixed_scale, tiny_gpt2


def stream(lens: Lens, path: str = "transformer.h.1") -> Tensor:
    """What enters the second block."""
    store = Store()
    with hooked(lens.model, [Hook(lens.model.get_submodule(path), "input", store)]):
        logits(lens)
    return store.value


def snapshot(lens: Lens) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in lens.model.state_dict().items()}


@pytest.mark.parametrize("edit", [fold, to_rms, to_crms, untie], ids=lambda edit: edit.__name__)
def test_the_lens_that_was_given_stays_as_it_is(edit) -> None:
    lens = open_model(tiny_gpt2(4), tokenizer=None)
    before, specs, config = snapshot(lens), lens.sites, lens.model.config.to_dict()
    edited = edit(lens)
    assert lens.sites == specs and lens.edits == () and lens.model.config.to_dict() == config
    after = lens.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert edited.model.config.tie_word_embeddings is False
    assert len(edited.edits) == 1


def test_folding_shares_what_it_does_not_change() -> None:
    lens = open_model(tiny_gpt2(4), tokenizer=None)
    new = dict(fold(lens).model.named_parameters())
    changed = (".ln_", "c_attn", "c_fc", "lm_head")
    for name, parameter in lens.model.named_parameters():
        shared = new[name].data_ptr() == parameter.data_ptr()
        assert shared == (not any(part in name for part in changed)), name


@pytest.mark.parametrize("architecture", ["gpt2", "gemma", "stablelm", "cohere", "falcon-new"])
def test_folded_norms_have_no_gain_and_no_bias(architecture: str) -> None:
    lens = fold(opened(architecture))
    for site in lens.sites:
        gamma, beta = gain_and_bias(lens, site)
        trivial = (gamma is None or bool((gamma == 1).all())) and (
            beta is None or not bool(beta.any())
        )
        assert trivial == bool(site.feeds), site.label


def test_folding_some_sites_and_refusing_others() -> None:
    lens = opened("qwen3")
    some = fold(lens, "0.pre_mlp")
    assert some.edits == ("fold@0.pre_mlp",)
    ones = [
        bool((g == 1).all())
        for s in some.sites
        for g in [gain_and_bias(some, s)[0]]
        if g is not None
    ]
    assert ones.count(True) == 1
    with pytest.raises(NotApplicable, match=r"0\.q .*after their projection"):
        fold(lens, "q")
    (check,) = convert(lens, Fold()).checks
    assert any("q (2 of them) kept" in note for note in check.notes)


def test_fixed_scale_norms_vanish() -> None:
    lens = open_model(tiny_fixed_scale(2), tokenizer=None)
    folded = fold(lens)
    assert {site.spec.kind for site in folded.sites} == {NormKind.IDENTITY}
    assert all(isinstance(folded.module(site), nn.Identity) for site in folded.sites)
    assert error(lens, folded) <= 1e-5
    with pytest.raises(NotApplicable, match="no gain, bias or linear norm"):
        fold(folded)


@pytest.mark.parametrize(
    "kind", [NormKind.DYT, NormKind.ELN, NormKind.SCALE_NORM, NormKind.L1_NORM]
)
def test_other_kinds_fold_too(kind: NormKind) -> None:
    lens = swap_kind(open_model(tiny_gpt2(4), tokenizer=None), kind)
    assert error(lens, fold(lens)) <= 1e-5
    with pytest.raises(NotApplicable, match=r"0\.pre_attn"):
        rotate(to_rms(lens)) if kind is not NormKind.L1_NORM else rotate(fold(lens))


def test_a_factor_is_folded() -> None:
    lens = open_model(tiny_gpt2(4), tokenizer=None)
    spec = NormSpec(
        NormKind.LAYER_NORM, 32, eps=3e-4, centred=True, gain=True, bias=True, factor=0.5
    )
    scaled = replace_norms(lens, {"1.pre_mlp": spec})
    assert error(lens, scaled) <= 1e-5, "gain and bias make up for the factor"
    folded = fold(scaled)
    assert {site.spec.factor for site in folded.sites} == {1.0}
    assert error(lens, folded) <= 1e-5


def test_rms_takes_the_mean_out_of_the_stream() -> None:
    lens = opened("gpt2")
    new = to_rms(lens)
    assert {site.spec.kind for site in new.sites} == {NormKind.RMS_NORM}
    assert [site.spec.eps for site in new.sites] == [site.spec.eps for site in lens.sites]
    old, now = stream(lens), stream(new)
    assert old.mean(-1).abs().min() > 1e-2
    assert now.mean(-1).abs().max() < 1e-5
    torch.testing.assert_close(now, old - old.mean(-1, keepdim=True), rtol=1e-4, atol=1e-5)


def test_crms_drops_the_last_coordinate() -> None:
    lens = opened("gpt2")
    new = to_crms(lens)
    assert {(site.spec.kind, site.spec.width) for site in new.sites} == {(NormKind.CRMS_NORM, 31)}
    torch.testing.assert_close(stream(new), stream(to_rms(lens))[..., :-1], rtol=1e-4, atol=1e-5)
    assert new.model.get_input_embeddings().get_parameter("weight").shape[1] == 31


def test_an_edit_that_does_not_keep_the_logits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is not centred must be noticed by the run itself."""
    monkeypatch.setattr(rms_module, "centre_writers", lambda model, stream: None)
    with pytest.raises(VerificationError, match=r"rms should keep the logits .* moves them by"):
        to_rms(opened("gpt2"))


def test_rotation_removes_outlier_dimensions() -> None:
    model = tiny_gpt2(4)
    model.transformer.wpe.weight.data[:, 5] += 30
    lens = to_rms(open_model(model, tokenizer=None))
    turned = rotate(lens, seed=2)
    assert turned.edits == ("rms", "rotate=2")
    assert error(lens, turned) <= 1e-5
    before, after = (stream(one).abs() for one in (lens, turned))
    assert (before.amax(-1) / before.median(-1).values).mean() > 8
    assert (after.amax(-1) / after.median(-1).values).mean() < 5
    torch.testing.assert_close(stream(turned).norm(dim=-1), stream(lens).norm(dim=-1))
    torch.testing.assert_close(
        stream(turned).double(),
        stream(lens).double() @ random_rotation(32, 2).T,
        rtol=1e-4,
        atol=1e-3,
    )
    assert not torch.equal(stream(rotate(lens, seed=3)), stream(turned))


def test_a_rotation_is_orthogonal_and_uniform() -> None:
    q = random_rotation(24, 7)
    torch.testing.assert_close(q @ q.T, torch.eye(24).double(), rtol=0, atol=1e-12)
    first = torch.stack([random_rotation(3, seed)[:, 0] for seed in range(400)])
    assert first.mean(0).abs().max() < 0.1, "without signs from R every diagonal would lean"
    torch.testing.assert_close(
        first.square().mean(0), torch.full((3,), 1 / 3).double(), rtol=0, atol=0.06
    )


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(NotApplicable, match="convert to rms first"):
        rotate(opened("gpt2"))
    with pytest.raises(NotApplicable, match="fold first"):
        rotate(opened("llama"))
    with pytest.raises(NotApplicable, match="are not tied"):
        untie(opened("llama"))
    with pytest.raises(NotApplicable, match="crms_norm, which depends on the basis"):
        convert(to_crms(opened("gpt2")), Rotate(0))
    mixed = swap_kind(opened("gpt2"), NormKind.RMS_NORM, "0.pre_mlp")
    with pytest.raises(NotApplicable, match=r"0\.pre_mlp .*rms_norm, which sees the mean"):
        to_rms(mixed)


def test_untying_changes_nothing_but_the_sharing() -> None:
    lens = opened("gpt2")
    new = untie(lens)
    assert torch.equal(logits(new), logits(lens))
    parameter = new.model.get_output_embeddings().get_parameter("weight")
    assert parameter is not new.model.get_input_embeddings().get_parameter("weight")
    with torch.inference_mode():
        assert new.model.generate(IDS[:1], max_new_tokens=2).shape[1] == IDS.shape[1] + 2
