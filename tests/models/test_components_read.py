"""Components add up to the final residual, whatever the norms are and whichever side is padded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from normlens.models.components import ComponentView
from normlens.models.components_read import (
    Components,
    head_outputs,
    read_components,
    sum_components,
)
from normlens.tolerances import for_dtype
from tests.models.component_models import MASKS, MODELS, batch, shared

pytestmark = pytest.mark.components
TOLERANCE = for_dtype("component_sum", "float32")


def error(view: ComponentView, components: Components, mask: torch.Tensor | None) -> float:
    total, absolute = sum_components(view, components)
    residual = components.residuals[-1]
    relative = (total - residual).abs() / absolute.clamp(min=1)
    return (relative if mask is None else relative[mask.bool()]).max().item()


@pytest.mark.parametrize("patterns", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_components_sum_to_the_final_residual(kind: str, patterns: bool) -> None:
    _, view = shared(kind, patterns)
    for padding in MASKS:
        ids, mask = batch(padding)
        components = read_components(view, ids, mask)
        assert error(view, components, mask) <= TOLERANCE


@pytest.mark.parametrize("kind", MODELS)
def test_the_final_residual_is_the_models_own(kind: str) -> None:
    lens, view = shared(kind)
    ids, mask = batch("right")
    final = max(lens.sites, key=lambda site: site.order)
    seen: list[torch.Tensor] = []
    handle = lens.module(final).register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    with torch.no_grad():
        lens.model(input_ids=ids, attention_mask=mask)
    handle.remove()
    components = read_components(view, ids, mask)
    torch.testing.assert_close(components.residuals[-1], seen[0], rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "llama_biases"])
def test_heads_and_bias_sum_to_the_attention_output(kind: str) -> None:
    _, view = shared(kind)
    components = read_components(view, *batch())
    for layer, z, attention in zip(view.layers, components.z, components.attention, strict=True):
        heads = head_outputs(layer, z).sum(-2)
        torch.testing.assert_close(heads + (0 if layer.b_O is None else layer.b_O), attention)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_each_wrong_term_is_noticed(kind: str) -> None:
    _, view = shared(kind)
    ids, mask = batch("right")
    right = read_components(view, ids, mask)
    swapped = tuple(z.flip(-2) for z in right.z)
    wrong = [
        replace(right, z=swapped),
        replace(right, mlp=tuple(torch.zeros_like(m) for m in right.mlp)),
        replace(right, embeddings=right.embeddings[:-1] or (right.embeddings[0] * 0.99,)),
    ]
    for components in wrong:
        assert error(view, components, mask) > 100 * TOLERANCE


def test_a_dropped_attention_bias_is_noticed() -> None:
    _, view = shared("layer_norm")
    without = replace(view, layers=tuple(replace(layer, b_O=None) for layer in view.layers))
    components = read_components(view, *batch())
    assert error(without, components, None) > 100 * TOLERANCE


def test_residuals_before_each_block_are_partial_sums() -> None:
    _, view = shared("layer_norm")
    components = read_components(view, *batch("right"))
    partial = sum(components.embeddings, torch.zeros(()))
    for residual, attention, mlp in zip(
        components.residuals, components.attention, components.mlp, strict=False
    ):
        torch.testing.assert_close(partial, residual)
        partial = partial + attention + mlp
    torch.testing.assert_close(partial, components.residuals[-1])
