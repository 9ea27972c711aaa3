"""What a model does with BOS: sink, value drain, residual peak; and its losses by role.

Means are over sequences, heads and queries; the first two queries are left out, which see
nothing but themselves and BOS.

* attention: weight of the key BOS (2410.13835, section 2: dormant heads attend to it).
* logit gap: ``s_iBOS - mean_j s_ij`` over the other visible keys ``j``, scaled logits.
* value ratio: ``|v_BOS| / mean |v_j|``; a drained value has a ratio far below 1.
* residual ratio: ``|h_BOS| / mean |h_j|`` of the stream after a block; a peak is far above 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from normlens.decoder import DecoderForCausalLM
from normlens.decoder.attention import Attention
from normlens.decoder.attention_weights import relu_mean, softplus_l1
from normlens.hooks import Hook, hooked
from normlens.training.toys.bigram_backcopy import BigramBackcopy

RULES = MappingProxyType({"softplus_l1": softplus_l1, "relu": relu_mean})


@dataclass(frozen=True)
class LayerExtremes:
    """One block.

    Attributes:
        sink_other: weight of BOS at tokens that are no triggers (dormant when large).
        sink_trigger: weight of BOS at triggers (active when small).
        copy_trigger: weight of the preceding token at triggers.
        mass_other: sum of the weights at tokens that are no triggers; 1 but for ReLU.
        gap_other: logit gap of BOS at tokens that are no triggers.
        gap_trigger: the same at triggers.
        value_ratio: of the values that are attended to.
        residual_ratio: of the stream after the block.
    """

    sink_other: float
    sink_trigger: float
    copy_trigger: float
    mass_other: float
    gap_other: float
    gap_trigger: float
    value_ratio: float
    residual_ratio: float


@dataclass(frozen=True)
class Extremes:
    """A model on one batch; losses in nats/token.

    Attributes:
        loss_other: after tokens that are neither trigger nor BOS.
        loss_trigger: after triggers.
        layers: by block.
    """

    loss_other: float
    loss_trigger: float
    layers: tuple[LayerExtremes, ...]


@torch.inference_mode()
def measure(
    model: DecoderForCausalLM, task: BigramBackcopy, ids: Int[Tensor, "sequence pos"]
) -> Extremes:
    """Extremes of a composed decoder with learned positions and no norms in its heads."""
    # Typed as plain modules by torch.
    blocks: list[Any] = list(model.model.layers)
    taken: list[dict[str, Tensor]] = [{} for _ in blocks]
    hooks: list[Hook] = []
    for i, (block, one) in enumerate(zip(blocks, taken, strict=True)):
        body = block.attn.body
        for name in ("q_proj", "k_proj", "v_proj"):
            hooks.append(Hook(body.get_submodule(name), "output", _Keep(one, name), name))
        hooks.append(Hook(block, "output", _Keep(one, "stream"), f"block {i}"))
    with hooked(model, hooks):
        logits = model(input_ids=ids, use_cache=False).logits
    trigger = task.is_trigger(ids)
    losses = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    ).view(ids.shape[0], -1)
    after_trigger = trigger[:, :-1]
    after_other = ~after_trigger
    after_other[:, 0] = False
    return Extremes(
        loss_other=losses[after_other].mean().item(),
        loss_trigger=losses[after_trigger].mean().item(),
        layers=tuple(
            _layer(block.attn.body, one, trigger) for block, one in zip(blocks, taken, strict=True)
        ),
    )


def attention_of(
    body: Attention, kept: dict[str, Tensor]
) -> tuple[Float[Tensor, "row head q k"], Float[Tensor, "row head q k"]]:
    """Scaled logits and weights from projected queries and keys."""
    heads = (*kept["q_proj"].shape[:-1], -1, body.head_dim)
    query = kept["q_proj"].view(heads).transpose(1, 2)
    key = kept["k_proj"].view(heads).transpose(1, 2)
    logits = query @ key.transpose(-1, -2) * body.scale
    visible = torch.ones_like(logits[0, 0], dtype=torch.bool).tril()[None, None]
    rule = body.config.attention
    if rule == "softmax":
        return logits, logits.masked_fill(~visible, -torch.inf).softmax(-1)
    return logits, RULES[rule](logits, visible)


def _layer(body: Attention, kept: dict[str, Tensor], trigger: Tensor) -> LayerExtremes:
    logits, weights = attention_of(body, kept)
    logits, weights = logits.mean(1), weights.mean(1)
    positions = torch.arange(2, trigger.shape[1])
    # Key 0 is BOS; a query at position i sees i other keys.
    others = (logits.tril()[:, 2:].sum(-1) - logits[:, 2:, 0]) / positions
    gap = logits[:, 2:, 0] - others
    to_bos = weights[:, 2:, 0]
    to_previous = weights[:, positions, positions - 1]
    at = trigger[:, 2:]
    return LayerExtremes(
        sink_other=to_bos[~at].mean().item(),
        sink_trigger=to_bos[at].mean().item(),
        copy_trigger=to_previous[at].mean().item(),
        mass_other=weights[:, 2:].sum(-1)[~at].mean().item(),
        gap_other=gap[~at].mean().item(),
        gap_trigger=gap[at].mean().item(),
        value_ratio=_bos_ratio(kept["v_proj"]),
        residual_ratio=_bos_ratio(kept["stream"]),
    )


def _bos_ratio(vectors: Float[Tensor, "row pos width"]) -> float:
    norms = vectors.norm(dim=-1)
    return (norms[:, 0].mean() / norms[:, 1:].mean()).item()


@dataclass(frozen=True)
class _Keep:
    into: dict[str, Tensor]
    name: str

    def __call__(self, x: Tensor) -> None:
        self.into[self.name] = x
