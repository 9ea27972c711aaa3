"""The component view computes what the model computes and names its parts."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from normlens.errors import ComponentMismatch, NotApplicable, UsageError
from normlens.hooks import Hook, hook_count, hooked
from normlens.models.components import ComponentView, build_view, component_view, forward
from normlens.models.components_boot import twin_of
from normlens.models.components_guard import verify_components
from normlens.models.lens import Lens
from tests.models.component_models import MODELS, batch, lens_of, shared
from tests.tiny import tiny_gpt2

pytestmark = pytest.mark.components


def model_logits(lens: Lens, padding: str, **options: Any) -> torch.Tensor:
    ids, mask = batch(padding)
    with torch.no_grad():
        return lens.model(input_ids=ids, attention_mask=mask, **options).logits


def view_logits(view: ComponentView, padding: str) -> torch.Tensor:
    with torch.no_grad():
        logits = forward(view, *batch(padding))
    assert logits is not None
    return logits


@pytest.mark.parametrize("padding", ["unpadded", "right"])
@pytest.mark.parametrize("kind", MODELS)
def test_logits_are_the_models_bit_for_bit(kind: str, padding: str) -> None:
    lens, view = shared(kind)
    assert torch.equal(view_logits(view, padding), model_logits(lens, padding))


@pytest.mark.parametrize("kind", MODELS)
def test_logits_with_patterns_agree(kind: str) -> None:
    lens, view = shared(kind, True)
    expected = model_logits(lens, "right")
    atol = 1e-5 * expected.abs().max().item()
    torch.testing.assert_close(view_logits(view, "right"), expected, atol=atol, rtol=0)


def test_left_padding_counts_positions_from_the_first_token() -> None:
    lens, view = shared("layer_norm")
    _, mask = batch("left")
    assert mask is not None
    real = mask.bool()
    ours = view_logits(view, "left")[real]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    torch.testing.assert_close(ours, model_logits(lens, "left", position_ids=positions)[real])
    assert not torch.allclose(ours, model_logits(lens, "left")[real], atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("patterns", [False, True])
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "fixed_scale"])
def test_other_dtypes_pass_the_guard(kind: str, patterns: bool, dtype: torch.dtype) -> None:
    model = MODELS[kind]()
    nn.Module.to(model, dtype)
    view = component_view(lens_of(model), patterns=patterns)
    assert view_logits(view, "right").dtype == dtype


@pytest.mark.parametrize("patterns", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_sites_run_once_on_the_same_inputs_and_outputs(kind: str, patterns: bool) -> None:
    lens, view = shared(kind, patterns)
    theirs = site_values(lens, lens.model, lens.module, lambda: model_logits(lens, "right"))
    ours = site_values(lens, view.bridge, view.site_module, lambda: view_logits(view, "right"))
    assert len(theirs) == 2 * len(lens.sites)
    for a, b in zip(theirs, ours, strict=True):
        atol = 1e-5 * a.abs().max().item() if patterns else 0.0
        torch.testing.assert_close(a, b, atol=atol, rtol=0)


def site_values(lens: Lens, tree: Any, module: Any, run: Any) -> list[torch.Tensor]:
    values: list[torch.Tensor] = []
    hooks: list[Hook] = []
    for site in lens.sites:
        hooks.append(Hook(module(site), "input", values.append, site.label))
        hooks.append(Hook(module(site), "output", values.append, site.label))
    with hooked(tree, hooks):
        run()
    return values


def test_an_edit_at_a_site_reaches_the_logits() -> None:
    lens, view = shared("fixed_scale")
    before = view_logits(view, "unpadded")
    site = lens.sites[1]
    with hooked(view.bridge, [Hook(view.site_module(site), "output", lambda y: 2 * y)]):
        edited = view_logits(view, "unpadded")
    with hooked(lens.model, [Hook(lens.module(site), "output", lambda y: 2 * y)]):
        expected = model_logits(lens, "unpadded")
    assert torch.equal(edited, expected)
    assert not torch.allclose(edited, before)
    assert torch.equal(view_logits(view, "unpadded"), before)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "llama_biases"])
def test_weights_are_views_on_the_models(kind: str) -> None:
    lens, view = shared(kind)
    unembedding = lens.model.get_output_embeddings()
    assert isinstance(unembedding, nn.Linear)
    assert view.W_U.data_ptr() == unembedding.weight.data_ptr()
    assert torch.equal(view.W_U, unembedding.weight.T)
    assert view.b_U is None
    assert (view.n_layers, view.n_heads, view.d_head) == (2, 4, 8)
    assert (view.d_model, view.d_vocab) == (32, 4096)
    for layer in range(view.n_layers):
        projection = attention_projection(lens, layer)
        weight = projection.weight if isinstance(projection, Conv1D) else projection.weight.T
        assert view.W_O(layer).data_ptr() == projection.weight.data_ptr()
        for head in range(view.n_heads):
            assert torch.equal(view.W_O(layer)[head], weight[8 * head : 8 * head + 8])
        bias = view.b_O(layer)
        if projection.bias is None:
            assert bias is None
        else:
            assert bias is not None and bias.data_ptr() == projection.bias.data_ptr()


def attention_projection(lens: Lens, layer: int) -> Any:
    paths = (f"transformer.h.{layer}.attn.c_proj", f"model.layers.{layer}.self_attn.o_proj")
    modules = dict(lens.model.named_modules())
    return next(modules[path] for path in paths if path in modules)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_patterns_are_those_of_eager_attention(kind: str) -> None:
    lens, view = shared(kind, True)
    patterns: list[torch.Tensor] = []
    hooks = []
    for layer in view.layers:
        assert layer.pattern is not None
        hooks.append(Hook(layer.pattern, "output", patterns.append))
    with hooked(view.bridge, hooks):
        view_logits(view, "right")
    eager = twin_of(lens.model)
    eager.set_attn_implementation("eager")
    ids, mask = batch("right")
    expected = eager(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    for ours, theirs in zip(patterns, expected, strict=True):
        assert ours.shape == (2, 4, 10, 10)
        torch.testing.assert_close(ours, theirs)
    assert shared(kind)[1].layers[0].pattern is None


@pytest.mark.parametrize("patterns", [False, True])
def test_without_logits_the_unembedding_does_not_run(patterns: bool) -> None:
    _, view = shared("layer_norm", patterns)
    record = Hook(view.unembedding, "output", lambda _: None)
    with torch.no_grad(), hooked(view.bridge, [record], fires=0):
        assert forward(view, *batch("right"), logits=False) is None
    with torch.no_grad(), hooked(view.bridge, [record], fires=1):
        assert forward(view, *batch("right")) is not None


@pytest.mark.parametrize("kind", ["fixed_scale", "eps_encoded", "eps_unlike_config"])
def test_the_guard_catches_norms_recomputed_by_the_bridge(kind: str) -> None:
    lens = lens_of(MODELS[kind]())
    assert verify_components(lens, build_view(lens, patterns=True, native_norms=True)) <= 1e-5
    with pytest.raises(ComponentMismatch, match=r"first norm to differ is 0\.pre_attn"):
        verify_components(lens, build_view(lens, patterns=True, native_norms=False))


def test_the_bridges_own_layer_norm_passes_where_the_config_tells_the_truth() -> None:
    lens = lens_of(tiny_gpt2())
    assert verify_components(lens, build_view(lens, patterns=True, native_norms=False)) <= 1e-5


def test_the_guard_names_the_first_norm_that_differs() -> None:
    lens = lens_of(tiny_gpt2())
    view = component_view(lens)
    site = next(s for s in lens.sites if s.label == "1.pre_attn")
    view.site_module(site).__dict__["eps"] = 2.0
    with pytest.raises(ComponentMismatch, match=r"1\.pre_attn \(transformer\.h\.1\.ln_1\)"):
        verify_components(lens, view)


def with_bias(view: ComponentView, value: float) -> ComponentView:
    """A view whose unembedding adds ``value`` to one logit, unlike the model's."""
    bias = torch.zeros(view.d_vocab)
    bias[5] = value
    view.unembedding.register_parameter("bias", nn.Parameter(bias))
    return view


def test_the_guard_notices_a_difference_after_the_last_norm() -> None:
    lens = lens_of(MODELS["rms_norm"]())
    with pytest.raises(ComponentMismatch, match="after the last one"):
        verify_components(lens, with_bias(component_view(lens), 1.0))


def test_the_guard_notices_not_a_number() -> None:
    lens = lens_of(MODELS["rms_norm"]())
    with pytest.raises(ComponentMismatch):
        verify_components(lens, with_bias(component_view(lens), torch.nan))


def test_the_guard_notices_logits_read_with_other_weights() -> None:
    lens = lens_of(MODELS["rms_norm"]())
    view = component_view(lens)
    with pytest.raises(ComponentMismatch, match="times the unembedding"):
        verify_components(lens, replace(view, W_U=view.W_U.roll(1, 1)))


def test_the_guard_notices_components_that_do_not_add_up() -> None:
    lens = lens_of(MODELS["layer_norm"]())
    view = component_view(lens)
    halved = [replace(layer, W_O=layer.W_O / 2) for layer in view.layers]
    with pytest.raises(ComponentMismatch, match="do not sum to its final residual"):
        verify_components(lens, replace(view, layers=tuple(halved)))


def test_a_model_in_training_mode_is_refused() -> None:
    lens = lens_of(tiny_gpt2())
    lens.model.train()
    with pytest.raises(UsageError, match=r"call model\.eval\(\)"):
        component_view(lens)


def test_an_architecture_transformer_lens_does_not_know_has_no_patterns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES

    lens = lens_of(tiny_gpt2())
    monkeypatch.delitem(SUPPORTED_ARCHITECTURES, "GPT2LMHeadModel")
    with pytest.raises(NotApplicable, match="GPT2LMHeadModel"):
        component_view(lens, patterns=True)
    assert component_view(lens).layers[0].pattern is None


def test_no_connection_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    lens = replace(lens_of(tiny_gpt2()), tokenizer=None)
    component_view(lens, patterns=True)


def test_hooks_leave_nothing_on_the_view() -> None:
    _, view = shared("layer_norm")
    after_boot = hook_count(view.bridge)
    with hooked(view.bridge, [Hook(view.layers[0].out_projection, "input", lambda z: None)]):
        view_logits(view, "right")
    assert hook_count(view.bridge) == after_boot
