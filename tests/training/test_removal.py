"""Freezing the scales one by one on every architecture, and what the model is afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from normlens.decoder import DecoderConfig, DecoderForCausalLM
from normlens.errors import NotApplicable, UsageError
from normlens.hooks import Hook, hooked
from normlens.models.families import family_of
from normlens.models.lens import Role
from normlens.models.sites import find_places
from normlens.models.verify import verify
from normlens.norms import FixedScale, NormKind
from normlens.training.recipe import Phase, Removal
from normlens.training.removal import NormRemoval
from normlens.training.removal_norm import RemovableNorm
from normlens.training.removal_sites import removal_sites, removal_switches, whole_norms
from normlens.training.schedule import freezes, removal_schedule
from tests.architectures import ARCHITECTURES
from tests.tiny import EPS, randomise, tiny_fixed_scale, tiny_gpt2

PLAN = Removal(
    mlp=Phase(start=1, gap=1), qk=Phase(start=3, gap=1), v=Phase(start=5, gap=1), final_step=7
)
REMOVABLE = sorted(
    set(ARCHITECTURES) - {"bert", "bert-encoder", "stablelm-qk"},
)
WITHOUT_NORM_BEFORE_ATTENTION = {
    *("opt-post", "olmo2", "olmo3"),
    *("decoder-post", "decoder-hybrid", "decoder-ngpt"),
}
SPLIT = sorted(set(REMOVABLE) - WITHOUT_NORM_BEFORE_ATTENTION)


def token_ids(seed: int = 0, pos: int = 7) -> Tensor:
    return torch.randint(0, 4096, (2, pos), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return model(input_ids=ids, use_cache=False).logits


def norms(model: PreTrainedModel) -> dict[str, RemovableNorm]:
    return {n: m for n, m in model.named_modules() if isinstance(m, RemovableNorm)}


@dataclass(frozen=True)
class _Replica:
    """Stands for the sum over this process and one that sees ``factor`` times as much."""

    factor: float

    def __call__(self, value: Tensor) -> None:
        value += self.factor * value


def close(a: Tensor, b: Tensor) -> bool:
    """Equal up to float32 rounding through the model, relative to the largest logit."""
    return bool((a - b).abs().max() < 3e-5 * b.abs().max())


def removal_of(model: PreTrainedModel) -> NormRemoval:
    return NormRemoval(model, removal_schedule(removal_switches(model), start=1, gap=2))


@pytest.mark.parametrize("name", REMOVABLE)
def test_nothing_changes_until_a_scale_is_frozen_and_all_of_them_can_be(name: str) -> None:
    model, ids = ARCHITECTURES[name](), token_ids()
    before = logits(model, ids)
    names = {parameter for parameter, _ in model.named_parameters()}
    sites = removal_sites(model)
    plan = removal_schedule(removal_switches(model), start=1, gap=2)
    removal = NormRemoval(model, plan)
    switches = sum(len(found.switches) for found in sites)
    assert removal.advance(0) == switches
    assert close(logits(model, ids), before)
    assert {parameter for parameter, _ in model.named_parameters()} == names
    removal.observe()
    live = [removal.advance(step) for step in range(plan.final_step + 60)]
    assert live == sorted(live, reverse=True) and live[0] == switches and live[-1] == 0
    frozen = logits(model, ids)
    assert frozen.isfinite().all() and not close(frozen, before)
    averages = {path: norm.average.item() for path, norm in norms(model).items()}
    removal.finish()
    assert close(logits(model, ids), frozen)
    fixed = {n: m.scale.item() for n, m in model.named_modules() if isinstance(m, FixedScale)}
    assert fixed == averages and set(fixed) == {found.site.path for found in sites}
    assert not norms(model)
    with pytest.raises(NotApplicable, match="a constant already"):
        removal_sites(model)


@pytest.mark.parametrize("name", SPLIT)
def test_queries_keys_and_values_have_switches_of_their_own(name: str) -> None:
    """A single token attends to itself whatever q and k are; a pattern does not depend on v."""
    model = ARCHITECTURES[name]()
    model.set_attn_implementation("eager")
    one, ids = token_ids(1, pos=1), token_ids()
    first = next(site for site in removal_sites(model) if len(site.switches) > 1)
    assert first.site.layer == 0 and not whole_norms((first,))
    removal_of(model)
    norm = norms(model)[first.site.path]
    logits(model, ids)
    norm.update_average(0.9)
    phases = [switch.phase for switch in first.switches]
    with torch.no_grad():
        alone, together = logits(model, one), model(input_ids=ids, output_attentions=True)
        norm.frozen[phases.index("qk")] = True
        assert close(logits(model, one), alone)
        changed = model(input_ids=ids, output_attentions=True)
        moved = not torch.allclose(changed.attentions[0], together.attentions[0], atol=1e-4)
        # Live norms on queries and keys undo their rescaling where the projections have no bias.
        assert moved != (name in ("cohere", "qwen3", "gemma3", "decoder-sandwich-qk"))
        norm.frozen = [phase == "v" for phase in phases]
        changed = model(input_ids=ids, output_attentions=True)
    torch.testing.assert_close(changed.attentions[0], together.attentions[0])
    assert not close(changed.logits, together.logits)


@pytest.mark.parametrize("name", ["gptj", "phi", "cohere", "falcon"])
def test_a_parallel_mlp_has_a_switch_of_its_own(name: str) -> None:
    model, ids = ARCHITECTURES[name](), token_ids()
    first = removal_sites(model)[0]
    assert [switch.phase for switch in first.switches] == ["mlp", "qk", "v"]
    removal_of(model)
    norm = norms(model)[first.site.path]
    before = logits(model, ids)
    norm.update_average(0.9)
    norm.frozen = [True, False, False]
    assert not close(logits(model, ids), before)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma", "nemotron", "olmo", "qwen3", "gemma3"])
def test_the_average_is_that_of_the_mean_scale_until_it_is_frozen(name: str) -> None:
    """Against the formula, on what each norm sees; heads count alike."""
    model = ARCHITECTURES[name]()
    site = removal_sites(model)[1].site
    eps, centred = site.spec.eps or 0.0, site.spec.centred
    norm = RemovableNorm(model.get_submodule(site.path), site.spec)
    means = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = 0.7 + torch.randn(2, 5, 4, site.spec.width, generator=generator) * (1 + seed)
        norm(x)
        if seed == 1:
            norm(x)  # as gradient checkpointing does
        norm.update_average(0.9)
        middle = x.mean(-1, keepdim=True) if centred else 0.0
        means.append(((x - middle).square().mean(-1) + eps).sqrt().mean().item())
    expected = 0.9 * (0.9 * means[0] + 0.1 * means[1]) + 0.1 * means[2]
    assert norm.average.item() == pytest.approx(expected, rel=1e-6)
    norm.frozen = [True]
    norm(x)
    norm.update_average(0.9)
    assert norm.average.item() == pytest.approx(expected, rel=1e-6)


@torch.no_grad()
def test_replicas_average_what_they_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas, the other one with scales three times as large."""
    model = ARCHITECTURES["llama"]()
    site = removal_sites(model)[0].site
    norm = RemovableNorm(model.get_submodule(site.path), site.spec)
    alone = RemovableNorm(model.get_submodule(site.path), site.spec)
    x = torch.randn(2, 5, site.spec.width, generator=torch.Generator().manual_seed(0))
    alone(x)
    alone.update_average(0.9)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        monkeypatch.setattr(torch.distributed, "all_reduce", _Replica(3.0))
        norm(x)
        norm.update_average(0.9)
    finally:
        monkeypatch.undo()
        torch.distributed.destroy_process_group()
    assert norm.average.item() == pytest.approx(2 * alone.average.item())


@torch.no_grad()
def test_evaluation_leaves_the_average_alone() -> None:
    model = ARCHITECTURES["llama"]()
    removal_of(model)
    model.eval()
    logits(model, token_ids())
    for norm in norms(model).values():
        norm.update_average(0.9)
    assert all(norm.average.isnan() for norm in norms(model).values())


def test_frozen_gains_and_projections_train_on() -> None:
    model, ids = ARCHITECTURES["gemma2"](), token_ids()
    removal = removal_of(model)
    logits(model, ids)
    removal.observe()
    removal.advance(10**6)
    model.requires_grad_(True)
    model(input_ids=ids).logits.square().mean().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert not missing


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "qwen3", "opt", "falcon"])
def test_the_first_position_can_have_a_constant_of_its_own(name: str) -> None:
    """Where positions are the axis before the last; elsewhere it counts in the mean."""
    model, ids = ARCHITECTURES[name](), token_ids()
    path = next(f.site.path for f in removal_sites(model) if f.site.role is Role.PRE_ATTN)
    plan = removal_schedule(removal_switches(model), start=1, gap=2)
    removal = NormRemoval(model, plan.model_copy(update={"first_position": "apart"}))
    norm = norms(model)[path]
    seen: list[Tensor] = []
    with hooked(model, [Hook(norm, "input", seen.append)]):
        logits(model, ids)
    removal.observe()
    x = seen[0] - seen[0].mean(-1, keepdim=True) if norm.spec.centred else seen[0]
    scale = (x.square().mean(-1) + (norm.spec.eps or 0.0)).sqrt()
    expected = torch.stack([scale[:, 0].mean(), scale[:, 1:].mean()])
    torch.testing.assert_close(norm.average, expected)
    removal.advance(10**6)
    frozen = logits(model, ids)
    removal.finish()
    assert close(logits(model, ids), frozen)
    first = model.get_submodule(path)
    assert isinstance(first, FixedScale)
    assert first.spec.position_scales == pytest.approx(expected.tolist())
    constants = {n: m.scale.ndim for n, m in model.named_modules() if isinstance(m, FixedScale)}
    assert (0 in constants.values()) == (name in ("qwen3", "opt"))


def test_bfloat16_is_normalised_in_float32() -> None:
    model = ARCHITECTURES["llama"]()
    site = removal_sites(model)[0].site
    norm = RemovableNorm(model.get_submodule(site.path), site.spec).to(torch.bfloat16)
    x = torch.randn(2, 5, site.spec.width, generator=torch.Generator().manual_seed(0))
    y = norm(x.bfloat16())
    assert y.dtype is torch.bfloat16
    wide = x.bfloat16().float()
    scale = (wide.square().mean(-1, keepdim=True) + (site.spec.eps or 0)).sqrt()
    assert norm.weight is not None
    torch.testing.assert_close(y.float(), wide / scale * norm.weight.float(), rtol=2**-8, atol=1e-6)


def test_each_switch_is_thrown_at_its_step() -> None:
    removal = NormRemoval(tiny_gpt2(), PLAN)
    assert [removal.advance(step) for step in range(9)] == [7, 6, 5, 4, 3, 2, 1, 0, 0]


def test_the_final_norm_is_frozen_last() -> None:
    model, ids = tiny_gpt2(), token_ids()
    removal = NormRemoval(model, PLAN)
    logits(model, ids)
    removal.observe()
    removal.advance(6)
    final_live = logits(model, ids)
    removal.advance(7)
    assert not close(logits(model, ids), final_live)


def test_norms_of_other_architectures_have_phases_of_their_own() -> None:
    switches = removal_switches(ARCHITECTURES["gemma3"]())
    plan = removal_schedule(switches, start=3, gap=2)
    order = [event.phase for event in freezes(plan, switches)]
    assert list(dict.fromkeys(order)) == ["mlp", "qk", "qk_norm", "v", "post", "final"]
    assert "embed" in {switch.phase for switch in removal_switches(ARCHITECTURES["bloom"]())}


def test_a_schedule_without_a_phase_that_is_needed_is_refused() -> None:
    with pytest.raises(UsageError, match=r"norm 0\.q and the schedule says nothing of qk_norm"):
        NormRemoval(ARCHITECTURES["qwen3"](), PLAN)


def test_a_fused_projection_of_unknown_order_is_frozen_whole() -> None:
    """Where v cannot be told from q and k there is one switch, and a line that says so."""
    model, ids = ARCHITECTURES["llama"](), token_ids()
    values = model.get_submodule("model.layers.0.self_attn.v_proj")
    nn.utils.parametrizations.weight_norm(values)
    before = logits(model, ids)
    first = removal_sites(model)[0]
    assert [switch.label for switch in first.switches] == ["0.pre_attn q,k,v"]
    assert first.switches[0].phase == "v"
    assert "v_proj is a Parametrized" in whole_norms(removal_sites(model))
    removal_of(model)
    assert close(logits(model, ids), before)


def eps_encoded() -> PreTrainedModel:
    return tiny_gpt2(layer_norm_epsilon=1e12)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (tiny_fixed_scale, "the scale of transformer.h.0.ln_1 is a constant already"),
        (eps_encoded, "the scale of transformer.h.0.ln_1 is a constant already"),
        (lambda: tiny_gpt2(add_cross_attention=True), "cross-attention"),
        (ARCHITECTURES["bert"], "is an encoder"),
        (ARCHITECTURES["stablelm-qk"], "a module per head"),
    ],
)
def test_models_that_cannot_lose_their_scales_are_refused(make, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason) as error:
        removal_switches(make())
    assert "\n" not in str(error.value)


@torch.no_grad()
def test_the_scale_anchor_is_fixed_when_the_first_norm_is() -> None:
    model = tiny_gpt2()
    removal = NormRemoval(model, PLAN)
    seen = []
    for step in range(5):
        removal.advance(step)
        seen.append(None if removal.anchor is None else removal.anchor.item())
        logits(model, token_ids(step))
        removal.observe()
    final = model.transformer.ln_f
    assert isinstance(final, RemovableNorm)
    assert seen[0] is None and len(set(seen[1:])) == 1
    assert final.average.item() != seen[1]


NORM = {"kind": "layer_norm", "eps": EPS, "gain": True, "bias": True}


def decoder(**fields: Any) -> PreTrainedModel:
    """A random two-block composed decoder."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = DecoderConfig(**{"norm": NORM, "max_position_embeddings": 64, **sizes, **fields})
    return randomise(DecoderForCausalLM(config), 0)


def test_the_factor_of_layer_norm_scaling_stays() -> None:
    model, ids = decoder(placement="pre", depth_factor="inverse_sqrt"), token_ids()
    before = logits(model, ids)
    assert {found.site.spec.factor for found in removal_sites(model)} == {1.0, 2**-0.5}
    removal = removal_of(model)
    assert close(logits(model, ids), before)
    removal.observe()
    removal.advance(10**6)
    frozen = logits(model, ids)
    removal.finish()
    assert close(logits(model, ids), frozen) and not close(frozen, before)
    specs = [site.spec for site in verify(model, find_places(model, family_of(model)))[0]]
    assert {(spec.kind, spec.factor) for spec in specs} == {
        (NormKind.FIXED_SCALE, 1.0),
        (NormKind.FIXED_SCALE, 2**-0.5),
    }


def test_a_norm_of_another_kind_is_refused() -> None:
    norm = {"kind": "l1_norm", "eps": EPS, "gain": True}
    with pytest.raises(NotApplicable, match="is of kind l1_norm; the recipe freezes the scales"):
        removal_sites(decoder(placement="pre", norm=norm))
    with pytest.raises(NotApplicable, match="divides by a live scale"):
        removal_sites(decoder(placement="pre", norm={"kind": "dyt", "gain": True, "alpha": 0.5}))
