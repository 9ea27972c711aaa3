"""Kernel of ``attention-entropy``: how spread out the attention of every head is.

1. Inside the pass every layer's attention is reduced to sums per sequence and head
   (:mod:`attention_reduce`): entropies, attention on the first token, logits, norms.
2. Per layer, head and query group these are summed over sequences in float64.
3. Those with an interval are also weighted by the document's bootstrap weights.

Source of the entropy and its bins: Jha & Reagen, 2410.09637; of the sink rate: Gu et al.,
2410.10781.
"""

from __future__ import annotations

import math

import torch

from normlens.capture.attention import attention_points
from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.errors import NotApplicable
from normlens.kernels.attention_reduce import Extreme, Sink, Stat, groups_of, reduce_chunk
from normlens.kernels.attention_summary import summarise
from normlens.kernels.attention_totals import REPLICATED
from normlens.models.blocks import block_modules
from normlens.models.heads import attention_rule
from normlens.text.sequences import Batch


def _init(context: Context) -> State:
    refuse_weights_without_a_sum(context)
    layers = len(block_modules(context.lens.model))
    heads = int(context.lens.model.config.num_attention_heads)
    groups = len(groups_of(context))
    state = State()
    sums = torch.zeros(layers, heads, groups, len(Stat), dtype=torch.float64)
    lowest = torch.full((layers, heads, groups, len(Extreme)), -math.inf, dtype=torch.float64)
    sinks = torch.zeros(layers, heads, len(Sink), dtype=torch.float64)
    state.declare("sums", sums)
    state.declare("extremes", lowest, Reduction.MAX)
    state.declare("sinks", sinks)
    state.declare("short", torch.zeros((), dtype=torch.int64))
    of_sums = (context.replicates, len(REPLICATED), layers, heads, groups)
    of_sinks = (context.replicates, len(Sink), layers, heads)
    state.declare("replicates", torch.zeros(of_sums, dtype=torch.float64))
    state.declare("replicate_sinks", torch.zeros(of_sinks, dtype=torch.float64))
    return state


def refuse_weights_without_a_sum(context: Context) -> None:
    """Refuse a model whose attention weights have no entropy.

    Raises:
        NotApplicable: they are ReLU of the logits.
    """
    if attention_rule(context.lens.model) == "relu":
        raise NotApplicable(
            f"the attention weights of {context.lens.identity.name} are ReLU of the logits over "
            "their number: they need not add up to 1, so they have no entropy"
        )


def _update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    points = attention_points(state.tensors["sums"].shape[0])
    sums, extremes, sinks = (
        torch.stack([observed.reduced[point.name][name] for point in points]).cpu()
        for name in ("sums", "extremes", "sinks")
    )  # [layer row head ...]
    state.add("sums", sums.sum(1))
    state.add("extremes", extremes.amax(1))
    state.add("sinks", sinks.sum(1))
    state.add("short", (batch.mask.sum(-1) < context.parameters.sink_positions).sum())
    chosen = sums[..., list(REPLICATED)]
    state.add("replicates", torch.einsum("br,lrhgw->bwlhg", batch.weights, chosen))
    state.add("replicate_sinks", torch.einsum("br,lrhw->bwlh", batch.weights, sinks))


def _finish(state: State, context: Context) -> Finding:
    return summarise(state, context)


KERNEL = Streaming(init=_init, update=_update, finish=_finish, reduce=reduce_chunk)
"""What the runner looks up."""
