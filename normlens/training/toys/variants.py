"""Models for the bigram-backcopy task: one recipe each, equal but for what is compared.

One head, as in the paper, and its optimizer: AdamW with betas 0.9 and 0.99, weight decay 1e-4,
constant lr. Smaller in all else: width 32 in place of 256, batches of 32 in place of 512, 1,000
steps in place of 10,000 or more, for which lr is 1e-2 in place of 3e-4 to 3e-3. Source:
2410.13835, the authors' code; clipping of gradients at norm 1 is the trainer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from normlens.errors import UnknownName
from normlens.training.recipe import Recipe, parse_recipe

CONTEXT = 64
INITIAL_STD = 0.1

_LAYER_NORM = {"kind": "layer_norm", "eps": 1e-5, "gain": True, "bias": True}
# The scale of the embeddings at the start: sqrt(2) times INITIAL_STD, tokens and positions.
_FIXED = {"kind": "fixed_scale", "fixed_scale": 0.14, "gain": True, "bias": True}

VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "ln": {"norm": _LAYER_NORM, "attention": "softmax"},
        "fixed": {"norm": _FIXED, "attention": "softmax"},
        "softplus": {"norm": _LAYER_NORM, "attention": "softplus_l1"},
        "relu": {"norm": _LAYER_NORM, "attention": "relu"},
    }
)
"""What the variants differ in: LayerNorm or a constant scale, and how logits become weights."""


def toy_recipe(variant: str, *, layers: int, seed: int, steps: int, lr: float = 1e-2) -> Recipe:
    """The recipe of one model; seeds fix weights and batches.

    Args:
        variant: of :data:`VARIANTS`.
        layers: number of blocks.
        seed: of the initial weights and of the order of the batches.
        steps: of 32 sequences.
        lr: after 50 steps of warm-up.

    Raises:
        UnknownName: no such variant.
    """
    if variant not in VARIANTS:
        raise UnknownName(f"no toy variant {variant!r}; choose one of {', '.join(VARIANTS)}")
    fields = {
        "name": f"toy-{variant}-{layers}",
        "purpose": "Sinks in the bigram-backcopy task.",
        "decoder": {
            "vocab_size": 64,
            "hidden_size": 32,
            "num_hidden_layers": layers,
            "num_attention_heads": 1,
            "max_position_embeddings": CONTEXT,
            "initializer_range": INITIAL_STD,
            **VARIANTS[variant],
        },
        "optimizer": {
            "lr": lr,
            "final_lr_fraction": 1.0,
            "warmup_steps": 50,
            "betas": (0.9, 0.99),
            "weight_decay": 1e-4,
        },
        "steps": steps,
        "batch_size": 32,
        "seed": seed,
        "data_seed": seed,
        "checkpoint_every": 500,
        "evaluate_every": 100,
    }
    return parse_recipe(fields, where=f"toy {variant}")
