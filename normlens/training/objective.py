"""What is minimised and what is measured: losses in nats/token."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from normlens.training.recipe import AuxiliaryScaleLoss


def auxiliary_scale_loss(
    x: Float[Tensor, "batch pos width"],
    eps: float,
    auxiliary: AuxiliaryScaleLoss,
    *,
    centred: bool = True,
    anchor: Tensor | None = None,
) -> Float[Tensor, ""]:
    """``weight * mean_pos (scale_pos - target)**2`` of the final norm's input.

    ``scale_pos = sqrt(var + eps)`` over the last axis, ``sqrt(mean(x**2) + eps)`` where the
    norm does not centre; ``target`` is its mean over positions from 1 on, without gradient,
    or the constant ``anchor``. The units are those of ``x`` squared.

    Source: 2507.02559, auxiliary loss. There the target also leaves out end-of-text
    tokens; training sequences hold none but the first token. With ``anchor``: 2602.10408,
    the fixed-target scale loss, a mean over every position of the batch.
    """
    spread = x.var(-1, correction=0) if centred else x.square().mean(-1)
    scale = (spread + eps).sqrt()
    target = scale[:, 1:].detach().mean() if anchor is None else anchor
    return auxiliary.weight * (scale - target).square().mean()


def next_token_loss(model: nn.Module, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of positions 1.. given what precedes them, nats/token."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


@torch.inference_mode()
def evaluate(model: nn.Module, ids: Int[Tensor, "batch pos"], batch_size: int) -> float:
    """Mean next-token loss over ``ids``, nats/token; leaves the model in training mode."""
    model.eval()
    device = next(model.parameters()).device
    total = 0.0
    for chunk in ids.split(batch_size):
        total += next_token_loss(model, chunk.to(device)).item() * len(chunk)
    model.train()
    return total / len(ids)
