"""Component view and logit attribution of every architecture, against model and oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normlens import runner
from normlens.capture.collector import component_weights
from normlens.capture.forward import observe
from normlens.capture.protocol import ComponentWeights, Observed
from normlens.capture.tree import component_tree
from normlens.catalog import Need
from normlens.errors import ComponentMismatch, NotApplicable
from normlens.hooks import Hook, hook_count, hooked
from normlens.kernels.attribution_scope import components_in_scope
from normlens.kernels.direct_effect import direct_effects
from normlens.kernels.readout import read_from_logits, read_logits
from normlens.models.components import ComponentView, component_view, forward
from normlens.models.components_boot import (
    boot_bridge,
    pattern_points,
    running_norms,
    twin_of,
)
from normlens.models.components_guard import verify_components
from normlens.models.components_locate import anatomy, assemble
from normlens.models.components_read import (
    Components,
    head_outputs,
    read_components,
    sum_components,
)
from normlens.models.components_scaling import Scaling
from normlens.models.identity import weights_sha256
from normlens.models.lens import Lens
from normlens.models.parameters import gain_and_bias
from normlens.norms import NormSpec
from normlens.tolerances import for_dtype
from tests.architectures import ARCHITECTURES
from tests.kernels.harness import cut, lens_of, random_rows, sequences_of
from tests.oracles import direct_effect as oracle

pytestmark = pytest.mark.components

ON_STREAM = ("opt-post", "bert", "bert-encoder", "decoder-post", "decoder-hybrid", "decoder-ngpt")
NORM_AFTER_ATTENTION = ("gemma2", "gemma3", "olmo2", "olmo3", "glm4", "decoder-sandwich-qk")
SCALED = ("granite", "cohere", "cohere-plain", "cohere2", "gemma2")
APPLICABLE = [name for name in ARCHITECTURES if name not in ON_STREAM]
WITHOUT_TRANSFORMER_LENS = {
    "phi-qk": "q_layernorm",
    "falcon-new": "split",
    "decoder": "does not know",
    "decoder-sandwich-qk": "does not know",
    "decoder-every-linear": "does not know",
}
"""Layouts that TransformerLens 4.3 cannot take apart, and a word of what it says."""

NOT_CAUSAL_WHEN_EAGER = ("falcon", "falcon-sequential")
"""transformers 5.24 loses Falcon's causal mask when sdpa is exchanged for eager."""

NEEDS = frozenset({Need.COMPONENTS, Need.LOGITS})
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
every_applicable = pytest.mark.parametrize("architecture", APPLICABLE)


@cache
def opened(architecture: str) -> Lens:
    return lens_of(ARCHITECTURES[architecture](), architecture)


@cache
def viewed(architecture: str) -> ComponentView:
    return component_view(opened(architecture))


def assert_untouched(lens: Lens) -> None:
    assert hook_count(lens.model) == 0
    assert weights_sha256(lens.model) == lens.identity.weights_sha256


def words(architecture: str, reason: str) -> str:
    """A reason without the name of the tiny model."""
    return reason.rpartition(f"{architecture}: ")[2].removeprefix(f"{architecture} ")


def ids(batch: int = 2, length: int = 11) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(1, 4096, (batch, length), generator=generator)


@pytest.mark.architecture_cell("component view")
@every_architecture
def test_components_sum_to_the_final_residual(
    architecture: str, record_property: Callable[[str, object], None]
) -> None:
    lens = opened(architecture)
    if architecture in ON_STREAM:
        with pytest.raises(NotApplicable, match="stand on the residual stream") as reason:
            component_view(lens)
        record_property("not_applicable", words(architecture, str(reason.value)))
        return
    view = viewed(architecture)
    assert verify_components(lens, view) == 0.0
    assert (view.n_layers, view.n_heads, view.d_head, view.d_model) == (2, 4, 8, 32)
    components = read_components(view, ids())
    tolerance = for_dtype("component_sum", "float32")
    assert sum_error(view, components) <= tolerance
    swapped = replace(components, z=tuple(z.flip(-2) for z in components.z))
    assert sum_error(view, swapped) > 100 * tolerance
    assert_untouched(lens)


def sum_error(view: ComponentView, components: Components) -> float:
    total, absolute = sum_components(view, components)
    return ((total - components.residuals[-1]).abs() / absolute.clamp(min=1)).max().item()


@every_applicable
def test_left_padding_changes_nothing(architecture: str) -> None:
    view, tokens = viewed(architecture), ids()
    mask = torch.ones_like(tokens)
    mask[0, :4] = 0
    with torch.no_grad():
        alone = forward(view, tokens[:1, 4:])
        padded = forward(view, tokens, mask)
        blind = forward(view, tokens)
    assert alone is not None and padded is not None and blind is not None
    atol = 1e-5 * alone.abs().max().item()
    torch.testing.assert_close(padded[:1, 4:], alone, rtol=0, atol=atol)
    assert (blind[:1, 4:] - alone).abs().max() > 100 * atol


@every_applicable
def test_transformer_lens_names_the_same_modules(architecture: str) -> None:
    lens = opened(architecture)
    twin = twin_of(lens.model)
    parts = anatomy(twin, lens)
    if architecture in WITHOUT_TRANSFORMER_LENS:
        with pytest.raises(NotApplicable, match=WITHOUT_TRANSFORMER_LENS[architecture]):
            boot_bridge(twin)
        return
    bridge: Any = boot_bridge(twin)
    for i, block in enumerate(bridge.blocks):
        assert block.attn.o.original_component is parts.out_projections[i]
        assert block.mlp.out.original_component is parts.mlp_outs[i]
    assert bridge.unembed.original_component is parts.unembedding
    if parts.position_embedding is not None:
        assert bridge.pos_embed.original_component is parts.position_embedding
    norms, points = running_norms(bridge, parts.norms), pattern_points(bridge)
    view = assemble(lens, twin, parts, norms, points)
    assert verify_components(lens, view) <= for_dtype("component_view", "float32")
    seen: list[Tensor] = []
    with torch.no_grad(), hooked(twin, [Hook(point, "output", seen.append) for point in points]):
        forward(view, ids())
    if architecture in NOT_CAUSAL_WHEN_EAGER:
        assert all(pattern.triu(1).abs().max() == 0.0 for pattern in seen)
        return
    eager = twin_of(lens.model)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        expected = eager(input_ids=ids(), use_cache=False, output_attentions=True).attentions
    for ours, theirs in zip(seen, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.architecture_cell("logit attribution")
@every_architecture
def test_contributions_add_up_to_the_raw_logit(
    architecture: str, record_property: Callable[[str, object], None]
) -> None:
    lens = opened(architecture)
    (result,) = runner.run(["logit-attribution"], lens, sequences_of(random_rows()), batch_size=3)
    if architecture in ON_STREAM:
        (reason,) = result.not_applicable.values()
        record_property("not_applicable", words(architecture, reason))
        assert "residual stream" in reason or "encoder" in reason
        return
    ((check,),) = result.checks.values()
    assert check.name == "conservation" and check.passed and check.value <= 1e-5
    assert (result.tables["components"]["n"] > 0).all()
    assert_untouched(lens)


def observed(architecture: str) -> Observed:
    (batch,) = cut(sequences_of(ids().tolist()), 2)
    return observe(component_tree(viewed(architecture), opened(architecture)), batch, NEEDS)


def discrepancy(seen: Observed, weights: ComponentWeights) -> float:
    targets = ids().roll(-1, 1)
    components, raw = components_in_scope(seen, weights)
    effects = direct_effects(components, weights, read_logits(weights, targets))
    return effects.discrepancy(read_from_logits(raw, targets)).max().item()


@every_applicable
def test_a_dropped_constant_breaks_the_sum(architecture: str) -> None:
    seen = observed(architecture)
    weights = component_weights(viewed(architecture), opened(architecture))
    assert discrepancy(seen, weights) <= 1e-5
    wrong: dict[str, Any] = {}
    if weights.gamma is not None:
        wrong["gamma"] = None
    if architecture in SCALED:
        wrong["scaling"] = Scaling()
    if architecture in NORM_AFTER_ATTENTION:
        wrong["post_attention"] = {}
    assert wrong or architecture == "olmo"
    for name, value in wrong.items():
        assert discrepancy(seen, replace(weights, **{name: value})) > 1e-3, name


@pytest.mark.parametrize("architecture", SCALED)
def test_the_guard_notices_a_constant_nobody_knows_of(architecture: str) -> None:
    lens, view = opened(architecture), viewed(architecture)
    with pytest.raises(ComponentMismatch, match="scales"):
        verify_components(lens, replace(view, scaling=Scaling()))
    for field, value in vars(view.scaling).items():
        if value not in (1.0, None):
            wrong = replace(view.scaling, **{field: value * 1.01})
            with pytest.raises(ComponentMismatch, match="scales"):
                verify_components(lens, replace(view, scaling=wrong))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("architecture", ["gemma2", "olmo2", "granite", "falcon", "cohere"])
def test_other_dtypes_add_up(architecture: str, dtype: torch.dtype) -> None:
    model = ARCHITECTURES[architecture]()
    nn.Module.to(model, dtype)
    lens = lens_of(model, architecture)
    (result,) = runner.run(["logit-attribution"], lens, sequences_of(random_rows()))
    assert not result.not_applicable and result.passed


def test_a_soft_cap_that_the_config_leaves_open_is_read_from_it() -> None:
    model = ARCHITECTURES["gemma3"]()
    model.config.final_logit_softcapping = 2.0
    lens = lens_of(model)
    view = component_view(lens)
    assert view.scaling == Scaling(softcap=2.0)
    with torch.no_grad():
        logits = forward(view, ids())
    assert logits is not None and 1.0 < logits.abs().max() <= 2.0
    with pytest.raises(ComponentMismatch, match="scales or caps"):
        verify_components(lens, replace(view, scaling=Scaling()))


def norm_of(spec: NormSpec, gamma: Tensor | None, beta: Tensor | None) -> oracle.Norm:
    return oracle.Norm(spec.kind.value, spec.eps or 0.0, spec.fixed_scale or 1.0, gamma, beta)


def vectors(view: ComponentView, read: Components) -> dict[str, Tensor]:
    """Every component as ``[batch pos d_model]`` in float64."""
    names = ("embed", "pos_embed")
    out = {n: e.double() for n, e in zip(names, read.embeddings, strict=False)}
    branch = view.scaling.branch
    for i, layer in enumerate(view.layers):
        layer = replace(layer, W_O=layer.W_O.double())
        terms = list(head_outputs(layer, read.z[i].double()).unbind(-2))
        if layer.b_O is not None:
            terms.append(layer.b_O.double().expand_as(terms[0]))
        bias = None
        if layer.post_attention is None:
            terms = [branch * term for term in terms]
        else:
            post = layer.post_attention
            norm = norm_of(post.spec, post.gamma, post.beta)
            terms, bias = oracle.through_attention_norm(terms, norm, branch)
        heads, rest = terms[: view.n_heads], terms[view.n_heads :]
        out |= {f"L{i}.H{h}": head for h, head in enumerate(heads)}
        rest += [] if bias is None else [bias]
        if rest:
            out[f"L{i}.attn_bias"] = torch.stack(rest).sum(0)
        out[f"L{i}.mlp"] = branch * read.mlp[i].double()
    return out


@every_applicable
def test_direct_effects_equal_removing_each_component(architecture: str) -> None:
    lens, view = opened(architecture), viewed(architecture)
    weights, targets = component_weights(view, lens), ids().roll(-1, 1)
    seen = observed(architecture)
    assert seen.components is not None
    effects = direct_effects(seen.components, weights, read_logits(weights, targets))
    read = read_components(view, ids())
    expected = vectors(view, read)
    assert [c.name for c in effects.components] == list(expected)
    norm = norm_of(weights.final.spec, *gain_and_bias(lens, weights.final))
    b_u = None if view.b_U is None else view.b_U.double()
    residual = read.residuals[-1].double()
    for i, c in enumerate(expected.values()):
        dla, effect = oracle.effects(c, residual, norm, view.W_U.double(), b_u, targets)
        atol = 2e-5 * max(1.0, dla.abs().max().item())
        torch.testing.assert_close(effects.dla[i], dla, rtol=0, atol=atol)
        torch.testing.assert_close(effects.effect[i], effect, rtol=0, atol=atol)
    assert effects.repair.abs().max() > 1e-2


@pytest.mark.parametrize("architecture", NORM_AFTER_ATTENTION)
def test_heads_do_not_add_up_by_themselves(architecture: str) -> None:
    """The norm after attention is what makes them: its gain and scale are in every head."""
    view = viewed(architecture)
    read = read_components(view, ids())
    for layer, z, attention in zip(view.layers, read.z, read.attention, strict=True):
        assert (head_outputs(layer, z).sum(-2) - attention).abs().max() > 0.1
