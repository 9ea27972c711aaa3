"""Making and running a component view leaves the caller's model as it was."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from normlens.hooks import hook_count
from normlens.models.components import component_view, forward
from tests.models.component_models import MODELS, batch, lens_of
from tests.tiny import tiny_gpt2

pytestmark = pytest.mark.components


def snapshot(model: PreTrainedModel) -> dict[str, Any]:
    return {
        "keys": list(model.state_dict()),
        "bytes": [t.clone() for t in model.state_dict().values()],
        "pointers": [t.data_ptr() for t in model.state_dict().values()],
        "modules": [(name, id(module)) for name, module in model.named_modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "training": [module.training for module in model.modules()],
        "attention": model.config._attn_implementation,
        "config": copy.deepcopy(model.config.to_dict()),
        "hooks": hook_count(model),
    }


@pytest.mark.parametrize("patterns", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_everything_is_as_before(kind: str, patterns: bool) -> None:
    lens = lens_of(MODELS[kind]())
    next(lens.model.parameters()).requires_grad_(True)
    before = snapshot(lens.model)
    assert before["hooks"] == 0 and before["attention"] == "sdpa"
    view = component_view(lens, patterns=patterns)
    with torch.no_grad():
        forward(view, *batch("right"))
    after = snapshot(lens.model)
    for old, new in zip(before.pop("bytes"), after.pop("bytes"), strict=True):
        assert torch.equal(old, new)
    assert after == before


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_save_pretrained_still_works(kind: str, tmp_path: Path) -> None:
    lens = lens_of(MODELS[kind]())
    ids, mask = batch("right")
    with torch.no_grad():
        before = lens.model(input_ids=ids, attention_mask=mask).logits
        component_view(lens, patterns=True)
        lens.model.save_pretrained(tmp_path)
        again = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert torch.equal(again(input_ids=ids, attention_mask=mask).logits, before)


@pytest.mark.parametrize("patterns", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_no_weight_memory_is_added(kind: str, patterns: bool) -> None:
    lens = lens_of(MODELS[kind]())
    view = component_view(lens, patterns=patterns)
    owned = {t.untyped_storage().data_ptr() for t in nn.Module.parameters(lens.model)}
    seen = {t.untyped_storage().data_ptr() for t in nn.Module.parameters(view.bridge)}
    assert seen == owned


def test_the_random_state_is_left_alone() -> None:
    lens = lens_of(tiny_gpt2())
    state = torch.random.get_rng_state()
    component_view(lens, patterns=True)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_hooks_of_the_caller_stay_with_the_caller() -> None:
    lens = lens_of(tiny_gpt2())
    calls: list[int] = []
    handle = lens.module(lens.sites[0]).register_forward_hook(lambda *_: calls.append(1))
    view = component_view(lens)
    calls.clear()
    with torch.no_grad():
        forward(view, *batch())
    assert not calls
    assert hook_count(lens.model) == 1
    handle.remove()
