"""From what each query of a prompt came to, to the tables of ``prompt-attention``.

A score is the mean of an attention over the queries that have such a key: ``first`` and
``current`` from the second query on, ``previous`` from the third on, ``duplicate`` and
``induction`` where the prompt repeats a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.capture.protocol import Context, Finding
from normlens.kernels.token_strings import token_string
from normlens.models.tokenizers import tokenizer_of
from normlens.results import Check, Headline
from normlens.tolerances import for_dtype

OF_CONTENT = ("previous_token", "duplicate_token", "induction", "current_token")
"""Scores a head is named after."""

SINK = "first_token"
"""The score it is named after where none of these is large enough."""

Queries = Mapping[str, Float[Tensor, "layer head query"]]


def summarise(
    queries: Queries,
    having: Mapping[str, Bool[Tensor, " query"]],
    patterns: Float[Tensor, "layer head kept kept"],
    ids: Int[Tensor, " query"],
    extremes: Float[Tensor, " 2"],
    context: Context,
) -> Finding:
    """Tables, headline numbers, checks and warnings.

    Args:
        queries: what each query came to, by name.
        having: which queries have a key of ``duplicate`` and ``induction``.
        patterns: of the last tokens.
        ids: of the prompt.
        extremes: how far an entropy lies outside its bounds, and how far the recomputed
            attention is from the model's.
        context: of the pass.
    """
    scores, n = head_scores(queries, having)
    heads = _heads_table(scores, n, context.parameters.threshold)
    return Finding(
        tables={
            "heads": heads,
            "queries": _queries_table(queries, ids, context),
            "patterns": _patterns_table(patterns, len(ids)),
        },
        headline=_headline(heads, n),
        checks=_checks(extremes, context),
        warnings=_warnings(queries, patterns, context),
    )


def head_scores(
    queries: Queries, having: Mapping[str, Bool[Tensor, " query"]]
) -> tuple[dict[str, Float[Tensor, "layer head"]], dict[str, int]]:
    """Mean of every score over its queries (NaN without any), and how many these are."""
    position = torch.arange(queries["entropy"].shape[-1])
    over = {
        "previous_token": (queries["previous"], position >= 2),
        "duplicate_token": (queries["duplicate"], having["duplicate"]),
        "induction": (queries["induction"], having["induction"]),
        "current_token": (queries["current"], position >= 1),
        "first_token": (queries["first"], position >= 1),
        "entropy": (queries["entropy"], position >= 1),
        "normalised": (_normalised(queries), position >= 1),
    }
    scores = {name: values[..., chosen].mean(-1) for name, (values, chosen) in over.items()}
    return scores, {name: int(chosen.sum()) for name, (_, chosen) in over.items()}


def category(scores: Mapping[str, float], threshold: float) -> str:
    """The name of the largest score of :data:`OF_CONTENT` that reaches the threshold.

    Otherwise ``first_token`` where that one does, else ``other``. An induction head rests on
    the first token while nothing repeats, so the first token comes last.
    """
    known = {name: scores[name] for name in OF_CONTENT if scores[name] >= threshold}
    if known:
        return max(known, key=lambda name: known[name])
    return SINK if scores[SINK] >= threshold else "other"


def _normalised(queries: Queries) -> Float[Tensor, "layer head query"]:
    """Entropy over ``ln n``; NaN with one visible key."""
    ceiling = queries["keys"].log()
    return torch.where(ceiling > 0, queries["entropy"] / ceiling, math.nan)


def _heads_table(
    scores: Mapping[str, Float[Tensor, "layer head"]], n: Mapping[str, int], threshold: float
) -> pd.DataFrame:
    layers, heads = scores["entropy"].shape
    frame = pd.DataFrame({name: values.flatten().numpy() for name, values in scores.items()})
    named = [
        category({name: float(frame[name].iloc[i]) for name in (*OF_CONTENT, SINK)}, threshold)
        for i in range(len(frame))
    ]
    return frame.assign(
        layer=np.repeat(np.arange(layers), heads),
        head=np.tile(np.arange(heads), layers),
        category=named,
        n=n["entropy"],
        n_duplicate=n["duplicate_token"],
        n_induction=n["induction"],
        status=np.where(frame["entropy"].isna(), "overflow", "ok"),
    )


def _queries_table(queries: Queries, ids: Int[Tensor, " query"], context: Context) -> pd.DataFrame:
    layers, heads, tokens = queries["entropy"].shape
    tokenizer = tokenizer_of(context.lens)
    names = [token_string(tokenizer, token) for token in ids.tolist()]
    layer, head, position = (
        axis.flatten() for axis in np.indices((layers, heads, tokens), dtype=np.int32)
    )
    entropy = queries["entropy"].flatten().numpy()
    return pd.DataFrame(
        {
            "layer": layer,
            "head": head,
            "position": position,
            "token": pd.array(names, dtype="str").take(position),
            "keys": queries["keys"].flatten().int().numpy(),
            "entropy": entropy,
            "ceiling": queries["keys"].log().flatten().numpy(),
            "normalised": _normalised(queries).flatten().numpy(),
            "first_mass": queries["first"].flatten().numpy(),
            "outside": queries["outside"].flatten().numpy(),
            "status": np.where(np.isnan(entropy), "overflow", "ok"),
        }
    )


def _patterns_table(patterns: Float[Tensor, "layer head kept kept"], tokens: int) -> pd.DataFrame:
    layers, heads, kept, _ = patterns.shape
    query, key = np.tril_indices(kept)
    start = tokens - kept
    count = layers * heads
    weight = patterns[:, :, torch.from_numpy(query), torch.from_numpy(key)].flatten().numpy()
    return pd.DataFrame(
        {
            "layer": np.repeat(np.arange(layers, dtype=np.int32), heads * len(query)),
            "head": np.tile(np.repeat(np.arange(heads, dtype=np.int32), len(query)), layers),
            "query": np.tile((query + start).astype(np.int32), count),
            "key": np.tile((key + start).astype(np.int32), count),
            "weight": weight,
            "status": np.where(np.isnan(weight), "overflow", "ok"),
        }
    )


def _headline(heads: pd.DataFrame, n: Mapping[str, int]) -> tuple[Headline, ...]:
    of_all = f"mean over heads and queries after the first, {len(heads)} heads"
    numbers = [
        Headline(
            "normalised_entropy", heads["normalised"].mean(), "1",
            f"entropy over ln of the visible keys, {of_all}", n["entropy"],
        ),
        Headline(
            "first_token", heads["first_token"].mean(), "1",
            f"attention on the first token, {of_all}", n["first_token"],
        ),
    ]  # fmt: skip
    for name in ("previous_token", "duplicate_token", "induction"):
        doc = f"largest {name.replace('_', ' ')} score of a head"
        value = heads[name].max() if n[name] else math.nan
        numbers.append(Headline(f"{name}_largest", float(value), "1", doc, n[name]))
    share = float((heads["category"] == SINK).mean())
    doc = "share of heads named after the first token"
    numbers.append(Headline("first_token_heads", share, "1", doc, n["first_token"]))
    return tuple(numbers)


def _checks(extremes: Float[Tensor, " 2"], context: Context) -> tuple[Check, ...]:
    dtype = context.lens.placement.dtype
    docs = {
        "attention_entropy_bounds": (
            "how far an entropy lies outside [0, ln n] for n visible keys, nats"
        ),
        "attention_recomputed": (
            "attention output at the last position from the recomputed probabilities, against "
            "the model's: max |difference| / max |value|"
        ),
    }
    found = []
    for (name, doc), worst in zip(docs.items(), extremes.tolist(), strict=True):
        tolerance = for_dtype(name, dtype)
        found.append(Check(name, max(worst, 0.0), tolerance, worst <= tolerance, doc))
    return tuple(found)


def _warnings(
    queries: Queries, patterns: Float[Tensor, "layer head kept kept"], context: Context
) -> tuple[str, ...]:
    name, found = context.lens.identity.name, []
    tokens, kept = queries["entropy"].shape[-1], patterns.shape[-1]
    if kept < tokens:
        found.append(
            f"{name}: patterns are kept for the last {kept} of {tokens:,} tokens; scores and "
            "entropies are of all"
        )
    lost = int(queries["entropy"].isnan().any(-1).sum())
    if lost:
        found.append(f"{name}: {lost} heads have queries whose attention is NaN")
    return tuple(found)
