"""Outlier statistics one token and one number at a time, and an explicitly rotated Llama."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from transformers import LlamaForCausalLM


def kurtosis(token: np.ndarray) -> float:
    values = [float(v) for v in token]
    mean = sum(values) / len(values)
    second = sum((v - mean) ** 2 for v in values) / len(values)
    fourth = sum((v - mean) ** 4 for v in values) / len(values)
    return fourth / second**2


def feature_kurtosis(tokens: list[np.ndarray]) -> float:
    """Centre over width, divide by the global RMS, ``E[s**2] / E[s]**2``."""
    centred = np.stack([t - t.mean() for t in tokens])
    centred = centred / math.sqrt((centred**2).mean())
    s = (centred**2).mean(0)
    return float((s**2).mean() / s.mean() ** 2)


def median(sequence: np.ndarray) -> float:
    """Lower median magnitude of all entries of a sequence ``[token d]``."""
    values = sorted(abs(float(v)) for v in sequence.ravel())
    return values[(len(values) - 1) // 2]


def massive(
    sequences: list[np.ndarray], threshold: float, ratio: float
) -> list[tuple[int, int, int, float, float]]:
    """Sequence, position, dimension, value and ratio of every massive activation."""
    found = []
    for s, sequence in enumerate(sequences):
        middle = median(sequence)
        for position, token in enumerate(sequence):
            for dimension, value in enumerate(token):
                if abs(value) > threshold and abs(value) >= ratio * middle:
                    found.append((s, position, dimension, float(value), abs(value) / middle))
    return found


def outlier_dimensions(
    layers: list[list[list[np.ndarray]]],
    threshold: float,
    layer_share: float,
    position_share: float,
    *,
    relative: bool,
) -> set[int]:
    """``layers[layer][input]`` is a list of tokens."""
    width = len(layers[0][0][0])
    found = set()
    for dimension in range(width):
        counting = 0
        for inputs in layers:
            shares = []
            for tokens in inputs:
                reached = 0
                for token in tokens:
                    unit = math.sqrt(sum(float(v) ** 2 for v in token) / width) if relative else 1
                    reached += abs(token[dimension]) >= threshold * unit
                shares.append(reached / len(tokens))
            counting += max(shares) >= position_share
        if counting / len(layers) >= layer_share:
            found.add(dimension)
    return found


def rotated_llama(model: LlamaForCausalLM, q: torch.Tensor) -> LlamaForCausalLM:
    """The same function with folded gains and its residual basis turned by ``q``; float64."""
    turned = copy.deepcopy(model).double()
    q = q.double()
    inner = turned.model
    with torch.no_grad():
        for layer in inner.layers:
            attention, mlp = layer.self_attn, layer.mlp
            gain = layer.input_layernorm.weight
            for reader in (attention.q_proj, attention.k_proj, attention.v_proj):
                reader.weight.copy_(reader.weight * gain @ q)
            gain.fill_(1.0)
            gain = layer.post_attention_layernorm.weight
            for reader in (mlp.gate_proj, mlp.up_proj):
                reader.weight.copy_(reader.weight * gain @ q)
            gain.fill_(1.0)
            for writer in (attention.o_proj, mlp.down_proj):
                writer.weight.copy_(q.T @ writer.weight)
        turned.lm_head.weight.copy_(turned.lm_head.weight * inner.norm.weight @ q)
        inner.norm.weight.fill_(1.0)
        inner.embed_tokens.weight.copy_(inner.embed_tokens.weight @ q)
    return turned
