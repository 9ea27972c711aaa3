"""Opening a TransformerBridge gives the lens of the model inside, or refuses in one line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from normlens.errors import LoadError
from normlens.hooks import hook_count
from normlens.models import Lens, open_model
from normlens.models.components import component_view
from normlens.models.identity import weights_sha256
from tests.architectures import ARCHITECTURES
from tests.tiny import VOCABULARY, tokenizer

pytestmark = pytest.mark.components

BOOTABLE = ("gpt2", "llama", "phi3", "gpt-neox", "bloom", "gemma2", "olmo2", "opt")
"""One per way of replacing modules: fused, gated, containerless, embedding and post norms."""


def bridged(architecture: str, eps: float | None = None) -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    model = ARCHITECTURES[architecture]()
    for norm in model.modules():
        if isinstance(norm, nn.LayerNorm) and eps is not None:
            norm.eps = eps
    model.config.architectures = [type(model).__name__]
    return TransformerBridge.boot_transformers(
        "tiny", hf_model=model, tokenizer=tokenizer(), device="cpu"
    )


def logits(lens: Lens, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return lens.model(input_ids=ids, use_cache=False).logits


IDS = torch.randint(1, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("architecture", BOOTABLE)
def test_the_lens_is_that_of_the_model_inside(architecture: str) -> None:
    bridge = bridged(architecture)
    # The first run of any model that transformers knows leaves its recorders on it.
    with torch.no_grad():
        theirs = bridge(IDS)
    before = weights_sha256(bridge.original_model), hook_count(bridge.original_model)
    lens = open_model(bridge)
    plain = open_model(ARCHITECTURES[architecture](), tokenizer=None)
    assert lens.identity.weights_sha256 == plain.identity.weights_sha256
    assert lens.sites == plain.sites
    assert lens.tokenizer is bridge.tokenizer
    assert lens.identity.source.startswith("memory:TransformerBridge of ")
    assert torch.equal(logits(lens, IDS), logits(plain, IDS))
    own = {t.untyped_storage().data_ptr() for t in nn.Module.parameters(bridge.original_model)}
    assert {t.untyped_storage().data_ptr() for t in lens.model.parameters()} <= own
    component_view(lens)
    assert (weights_sha256(bridge.original_model), hook_count(bridge.original_model)) == before
    torch.testing.assert_close(theirs, logits(lens, IDS), rtol=0, atol=1e-4)


def test_processed_weights_are_refused_and_the_mode_alone_is_not() -> None:
    bridge = bridged("llama")
    bridge.enable_compatibility_mode(disable_warnings=True, no_processing=True)
    open_model(bridge, tokenizer=None)
    bridge = bridged("llama")
    bridge.enable_compatibility_mode(disable_warnings=True)
    with pytest.raises(LoadError, match="folded or centred"):
        open_model(bridge, tokenizer=None)


def test_a_bridge_that_computes_something_else_is_refused() -> None:
    bridge = bridged("gpt2")
    bridge.blocks[1].hook_out.add_hook(lambda value, hook: value.roll(1, -1))
    with pytest.raises(LoadError, match="reset_hooks"):
        open_model(bridge)
    bridge.reset_hooks()
    open_model(bridge)


def test_a_bridge_that_recomputes_an_edited_norm_is_refused() -> None:
    """TransformerLens takes the eps of GPT-2's norms from the config, not from the modules."""
    with pytest.raises(LoadError, match="differ by"):
        open_model(bridged("gpt2", eps=0.5))


def test_training_mode_and_other_modules_are_refused() -> None:
    with pytest.raises(LoadError, match=r"eval\(\)"):
        open_model(bridged("gpt2").train())
    with pytest.raises(LoadError, match="Linear is neither"):
        open_model(nn.Linear(2, 2), tokenizer=None)


def test_other_sources_do_not_import_transformer_lens() -> None:
    code = (
        "import sys; from normlens.models import open_model\n"
        "from normlens.models.components import component_view\n"
        "from tests.tiny import tiny_gpt2\n"
        "component_view(open_model(tiny_gpt2(), tokenizer=None))\n"
        "assert 'transformer_lens' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
