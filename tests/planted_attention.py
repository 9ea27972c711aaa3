"""GPT-2 models in which the attention of every head is known in closed form.

No block writes to the residual and there are no position embeddings, so every block sees the
embeddings. Those of all tokens but BOS (id 0) are permutations of one vector, with the same
entry in coordinate MARKER: mean and scale of their LayerNorm agree, and ``y_MARKER``, the
norm's output there, is one number ``c`` for all of them and another, ``c_0``, for BOS.

All queries and keys are 0, which makes attention uniform, but those of one head: its query is
the constant ``unit(0)`` (the bias) and its key ``k unit(0) y_MARKER``, with k such that BOS's
logit is ``gap`` above that of every other key:

    a_0 = e^gap / (e^gap + n - 1)      for a query that sees BOS and n - 1 others
"""

from __future__ import annotations

import math

import torch
from transformers import GPT2LMHeadModel

from tests.tiny import EPS, tiny_gpt2

VOCABULARY, WIDTH, D_HEAD, HEADS = 61, 32, 8, 4
MARKER, BOS = 9, 0


def planted_head(gap: float, *, layer: int = 1, head: int = 2) -> GPT2LMHeadModel:
    """Uniform attention everywhere but in one head; its clean twin has ``gap = 0``."""
    model = tiny_gpt2(vocab_size=VOCABULARY)
    generator = torch.Generator().manual_seed(3)
    base = 0.4 + torch.randn(WIDTH - 1, generator=generator)
    with torch.no_grad():
        for token in range(VOCABULARY):
            mixed = base[torch.randperm(WIDTH - 1, generator=generator)]
            marker = torch.tensor([1.5 if token == BOS else -1.0])
            row = torch.cat([mixed[:MARKER], marker, mixed[MARKER:]])
            model.transformer.wte.weight[token] = row
        model.transformer.wpe.weight.zero_()
        for block in model.transformer.h:
            for writer in (block.attn.c_proj, block.mlp.c_proj):
                writer.weight.zero_()
                writer.bias.zero_()
            block.attn.c_attn.weight[:, : 2 * WIDTH] = 0
            block.attn.c_attn.bias[: 2 * WIDTH] = 0
        block = model.transformer.h[layer]
        apart = _marker(model, layer, BOS) - _marker(model, layer, 1)
        query, key = head * D_HEAD, WIDTH + head * D_HEAD
        block.attn.c_attn.bias[query] = 1.0
        block.attn.c_attn.weight[MARKER, key] = gap * D_HEAD**0.5 / apart
    return model


def first_mass(gap: float, keys: int) -> float:
    """``a_0`` of a query that sees that many keys."""
    return 1 / (1 + (keys - 1) * math.exp(-gap))


def entropy(gap: float, keys: int) -> float:
    """Its entropy: the first token or not, and uniform among the others."""
    first = first_mass(gap, keys)
    others = (1 - first) / max(keys - 1, 1)
    return -sum(p * math.log(p) for p in (first, *[others] * (keys - 1)) if p > 0)


def _marker(model: GPT2LMHeadModel, layer: int, token: int) -> float:
    """Output of the norm before attention in coordinate MARKER, float64."""
    norm = model.transformer.h[layer].ln_1
    x = model.transformer.wte.weight[token].double()
    y = (x[MARKER] - x.mean()) / (x.var(correction=0) + EPS).sqrt()
    return float(y * norm.weight[MARKER].double() + norm.bias[MARKER].double())
