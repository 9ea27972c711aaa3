"""Tiny composed decoders that hold every kind of norm, every placement, every other option."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from normlens.decoder import DecoderConfig, DecoderForCausalLM
from normlens.models import Lens, open_model
from normlens.models.detect import is_norm
from normlens.norms import NormSpec
from tests.decoder.tiny_decoders import SMALL, tiny_decoder
from tests.decoder.tiny_decoders import randomise as randomise_linears
from tests.norms.specs import VARIANTS as SPECS
from tests.norms.specs import randomised
from tests.tiny import tokenizer

WIDTH = 16
OPAQUE = "opaque"
KINDS = (
    "layer_norm",
    "layer_norm scaled",
    "rms_norm",
    "crms_norm",
    "scale_norm",
    "simple_rms_norm",
    "l1_norm",
    "l2_norm",
    "batch_norm",
    "power_norm",
    "unified_norm",
    "dyt",
    "eln",
    "fixed_scale",
    "fixed_scale by position",
    "identity",
    OPAQUE,
)
"""Every kind, each in every norm of a pre-norm decoder."""

SCHEMES = (
    "post",
    "sandwich",
    "peri",
    "hybrid",
    "deepnorm",
    "depth_scaled_sandwich-llama",
    "every_linear-llama",
    "sdd",
    "ngpt-llama",
    "norm-free",
    "no-final-norm",
    "qk-norm",
    "weight-norm",
    "softplus",
    "relu",
)
"""Placements and options, from ``tests.decoder.tiny_decoders``."""


class Unlike(nn.LayerNorm):
    """A LayerNorm by its class that computes something else."""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(x).sinh()


def with_norm(name: str, **fields: Any) -> DecoderForCausalLM:
    """A fresh pre-norm decoder of width 16 whose norms are all of a kind of ``KINDS``."""
    config = {**SMALL, "hidden_size": WIDTH, "intermediate_size": 24, **fields}
    config["norm"] = described(SPECS["layer_norm" if name == OPAQUE else name])
    model = randomise_linears(DecoderForCausalLM(DecoderConfig(**config)), seed=1)
    for seed, path in enumerate([n for n, m in model.named_modules() if is_norm(m)]):
        norm = model.get_submodule(path)
        if name == OPAQUE:
            norm = Unlike(WIDTH)
            model.set_submodule(path, norm)
        randomised(norm, seed)
        for leaf, buffer in norm.named_buffers():
            if leaf.startswith("running") and "mean" not in leaf:
                # A stream has a larger variance than 1: without this, logits are in hundreds.
                buffer *= 50
    return model.eval()


def described(spec: NormSpec) -> dict[str, Any]:
    """The fields of a spec as a config has them."""
    fields = dataclasses.asdict(spec)
    defaults = dataclasses.asdict(NormSpec(spec.kind, spec.width))
    own = {k: v for k, v in fields.items() if v != defaults[k]}
    return {"kind": spec.kind.value, **own}


@cache
def lens_of(name: str) -> Lens:
    """An opened model of ``KINDS`` or ``SCHEMES``."""
    build: Callable[[str], DecoderForCausalLM] = with_norm if name in KINDS else tiny_decoder
    with torch.random.fork_rng(devices=[]):
        return open_model(build(name), tokenizer=tokenizer(), name=name)
