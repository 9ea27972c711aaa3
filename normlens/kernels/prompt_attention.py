"""Kernel of ``prompt-attention``: patterns, entropies and head scores of one prompt.

With a_ij the attention of query i on key j and t the tokens, per head and query:

    entropy      -sum_j a_ij ln a_ij
    previous     a_i,i-1
    current      a_ii
    first        a_i0
    duplicate    sum of a_ij over 1 <= j < i with t_j = t_i
    induction    sum of a_ij over 1 <= j < i with t_(j-1) = t_i

All but the pattern are taken of every query inside the pass. The pattern is kept for the last
tokens alone where the prompt is too long for :data:`MOST_PAIRS`.

Sources: 2209.11895 (prefix matching); 2211.00593 (duplicate token heads).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.capture.attention import AttentionChunk, attention_points
from normlens.capture.points import Point
from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.errors import NotApplicable
from normlens.kernels.attention_entropy import refuse_weights_without_a_sum
from normlens.kernels.prompt_attention_tables import summarise
from normlens.models.blocks import block_modules
from normlens.models.families import family_of
from normlens.models.tokenizers import tokenizer_of
from normlens.text.sequences import Batch

MOST_PAIRS = 2**21
"""Pairs of a query and a key that patterns keep, over all heads."""


class Measure(IntEnum):
    """What a query comes to."""

    KEYS = 0
    ENTROPY = 1
    PREVIOUS = 2
    CURRENT = 3
    FIRST = 4
    DUPLICATE = 5
    INDUCTION = 6
    OUTSIDE = 7


def kept_tokens(tokens: int, wanted: int, heads: int) -> int:
    """How many of the last tokens have their pattern kept.

    The largest W up to ``tokens`` and ``wanted`` with ``heads W (W + 1) / 2 <= MOST_PAIRS``,
    and at least 2.
    """
    fits = (math.isqrt(8 * MOST_PAIRS // heads + 1) - 1) // 2
    return min(tokens, max(2, min(wanted, fits)))


def duplicates(ids: Int[Tensor, " pos"]) -> Bool[Tensor, "query key"]:
    """Keys after the first position, before the query, with the query's token."""
    return _after_first((ids[:, None] == ids[None, :]).tril(-1))


def followers(ids: Int[Tensor, " pos"]) -> Bool[Tensor, "query key"]:
    """Keys before the query that come right after an occurrence of the query's token."""
    return _after_first((ids[:, None] == ids.roll(1)[None, :]).tril(-1))


def _after_first(keys: Bool[Tensor, "query key"]) -> Bool[Tensor, "query key"]:
    keys[:, 0] = False
    return keys


def _init(context: Context) -> State:
    lens = context.lens
    refuse_weights_without_a_sum(context)
    tokenizer_of(lens)
    if not family_of(lens.model).causal:
        raise NotApplicable(
            f"{lens.identity.name} is an encoder: its queries see what comes after them, and the "
            "kinds of heads are those of causal models"
        )
    layers, heads = len(block_modules(lens.model)), int(lens.model.config.num_attention_heads)
    tokens, kept = _lengths(context)
    state = State()
    state.declare("ids", torch.zeros(0, dtype=torch.int64), Reduction.ROWS)
    queries = torch.zeros(0, layers, heads, tokens, len(Measure), dtype=torch.float64)
    state.declare("queries", queries, Reduction.ROWS)
    state.declare("patterns", torch.zeros(0, layers, heads, kept, kept), Reduction.ROWS)
    lowest = torch.full((2,), -math.inf, dtype=torch.float64)
    state.declare("extremes", lowest, Reduction.MAX)
    return state


def _lengths(context: Context) -> tuple[int, int]:
    """Tokens of the prompt, and those whose pattern is kept."""
    model = context.lens.model
    heads = len(block_modules(model)) * int(model.config.num_attention_heads)
    tokens = int(context.sequences.lengths[0])
    return tokens, kept_tokens(tokens, context.parameters.pattern_tokens, heads)


def _reduce(
    point: Point, chunk: AttentionChunk, batch: Batch, context: Context
) -> Mapping[str, Tensor]:
    tokens, kept = _lengths(context)
    real = slice(0, tokens)
    weights = chunk.probabilities[:, :, real, real]
    keys = chunk.keys[..., real].double().expand(weights.shape[:3])
    queries = _per_query(weights, keys, batch.ids[0, real], tokens - kept)
    entropy = queries[..., Measure.ENTROPY]
    outside = torch.maximum(-entropy, entropy - keys.log()).nan_to_num(-math.inf)
    residual = chunk.residual.double().nan_to_num(-math.inf)
    return {
        "queries": queries,
        "pattern": weights[:, :, tokens - kept :, tokens - kept :].to(torch.float32, copy=True),
        "extremes": torch.stack([outside.amax(-1), residual], -1),
    }


def _per_query(
    weights: Float[Tensor, "row head query key"],
    keys: Float[Tensor, "row head query"],
    ids: Int[Tensor, " pos"],
    start: int,
) -> Float[Tensor, "row head query measure"]:
    previous = torch.nn.functional.pad(weights.diagonal(-1, -2, -1), (1, 0))
    measures = {
        Measure.KEYS: keys,
        Measure.ENTROPY: torch.special.entr(weights).sum(-1, dtype=torch.float64),
        Measure.PREVIOUS: previous,
        Measure.CURRENT: weights.diagonal(0, -2, -1),
        Measure.FIRST: weights[..., 0],
        Measure.DUPLICATE: _mass(weights, duplicates(ids)),
        Measure.INDUCTION: _mass(weights, followers(ids)),
        Measure.OUTSIDE: weights[..., :start].sum(-1, dtype=torch.float64),
    }
    return torch.stack([measures[measure].double() for measure in Measure], -1)


def _mass(
    weights: Float[Tensor, "row head query key"], on: Bool[Tensor, "query key"]
) -> Float[Tensor, "row head query"]:
    return (weights * on).sum(-1, dtype=torch.float64)


def _update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    layers = state.tensors["queries"].shape[1]
    seen = [observed.reduced[point.name] for point in attention_points(layers)]
    state.add("ids", batch.ids[0, : state.tensors["queries"].shape[3]])
    state.add("queries", torch.stack([one["queries"] for one in seen], 1))
    state.add("patterns", torch.stack([one["pattern"] for one in seen], 1))
    state.add("extremes", torch.stack([one["extremes"] for one in seen]).flatten(0, -2).amax(0))


def _finish(state: State, context: Context) -> Finding:
    queries = dict(zip(Measure, state.tensors["queries"][0].unbind(-1), strict=True))
    ids = state.tensors["ids"]
    counts = {
        Measure.DUPLICATE: duplicates(ids).any(-1),
        Measure.INDUCTION: followers(ids).any(-1),
    }
    named = {measure.name.lower(): values for measure, values in queries.items()}
    having = {measure.name.lower(): mask for measure, mask in counts.items()}
    return summarise(
        named, having, state.tensors["patterns"][0], ids, state.tensors["extremes"], context
    )


KERNEL = Streaming(init=_init, update=_update, finish=_finish, reduce=_reduce)
"""What the runner looks up."""
