"""From the statistics of ``output`` to its tables, headline numbers and checks."""

from __future__ import annotations

import math

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from normlens.capture.protocol import Context, Finding
from normlens.capture.state import State
from normlens.capture.statistics import interval, log_quantile
from normlens.results import Check, Headline
from normlens.tolerances import for_dtype

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
GROUPS = {"all": (0, 1), "rest": (1,), "first": (0,)}
"""Token groups of the table: which entries of the kernel's group axis they sum."""

MEANS = {"cross_entropy": 1, "entropy": 2, "top1": 3}
"""Index of each mean in the per-sequence sums."""


def summarise(state: State, context: Context) -> Finding:
    """Tables, headline numbers, checks and warnings of ``output``."""
    tables = {
        "summary": _summary(state),
        "quantiles": _quantiles(state),
        "calibration": _calibration(state),
        "worst": _worst(state, context),
    }
    if context.parameters.per_token:
        tables["tokens"] = _tokens(state)
    replicates = {name: _replicates(state, name, GROUPS["all"]) for name in MEANS}
    headline = _headline(tables["summary"], replicates)
    return Finding(tables, headline, _checks(state, context), _warnings(state, context), replicates)


def _replicates(state: State, name: str, group: tuple[int, ...]) -> Tensor:
    sums = state.tensors["replicates"][:, :, list(group)].sum(-1)
    return sums[:, MEANS[name]] / sums[:, 0]


def _summary(state: State) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for name, group in GROUPS.items():
        members = list(group)
        n = int(state.tensors["n"][members].sum())
        overflow = int(state.tensors["overflow"][members].sum())
        means = state.tensors["sums"][:, members].sum(-1) / n
        cross_entropy, entropy, top1 = means.tolist()
        low, high = interval(_replicates(state, "cross_entropy", group))
        confidence, correct = state.tensors["bin_sums"][:, members].sum(1)
        rows.append(
            {
                "group": name,
                "n": n,
                "cross_entropy": cross_entropy,
                "cross_entropy_low": low,
                "cross_entropy_high": high,
                "perplexity": float(means[0].exp()),
                "entropy": entropy,
                "ece": float((correct - confidence).abs().sum() / n),
                "top1": top1,
                "status": "overflow" if overflow else "ok" if n else "no_data",
            }
        )
    return pd.DataFrame(rows)


def _quantiles(state: State) -> pd.DataFrame:
    values = [log_quantile(state.tensors["histogram"], level) for level in QUANTILES]
    status = "ok" if int(state.tensors["n"].sum()) else "no_data"
    return pd.DataFrame({"quantile": QUANTILES, "cross_entropy": values, "status": status})


def _calibration(state: State) -> pd.DataFrame:
    n = state.tensors["bin_n"].sum(0)
    confidence, correct = state.tensors["bin_sums"].sum(1)
    edges = torch.arange(len(n) + 1, dtype=torch.float64) / len(n)
    return pd.DataFrame(
        {
            "low": edges[:-1].numpy(),
            "high": edges[1:].numpy(),
            "n": n.numpy(),
            "confidence": (confidence / n).numpy(),
            "accuracy": (correct / n).numpy(),
        }
    )


def _worst(state: State, context: Context) -> pd.DataFrame:
    sequences = context.sequences
    rows: list[dict[str, object]] = []
    for rank, (loss, index, n) in enumerate(state.tensors["worst"].tolist(), start=1):
        sequence = int(index)
        ids = sequences.ids[sequence, : int(sequences.lengths[sequence])]
        rows.append(
            {
                "rank": rank,
                "sequence": sequence,
                "document": sequences.document_ids[int(sequences.document[sequence])],
                "n": int(n),
                "cross_entropy": loss,
                "text": _text(ids.tolist(), context.lens.tokenizer),
            }
        )
    columns = ["rank", "sequence", "document", "n", "cross_entropy", "text"]
    return pd.DataFrame(rows, columns=columns)


def _text(ids: list[int], tokenizer: PreTrainedTokenizerBase | None) -> str:
    """The text of a sequence without special tokens; its ids where there is no tokenizer."""
    if tokenizer is None:
        return " ".join(map(str, ids))
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert isinstance(text, str), "one sequence decodes to one string"
    return text


def _tokens(state: State) -> pd.DataFrame:
    sequence, position, token, cross_entropy, entropy = state.tensors["tokens"].unbind(1)
    return pd.DataFrame(
        {
            "sequence": sequence.long().numpy(),
            "position": position.long().numpy(),
            "token": token.long().numpy(),
            "cross_entropy": cross_entropy.numpy(),
            "entropy": entropy.numpy(),
        }
    )


def _headline(summary: pd.DataFrame, replicates: dict[str, Tensor]) -> tuple[Headline, ...]:
    row = summary.iloc[list(GROUPS).index("all")]
    n = int(row["n"])

    def mean(name: str, unit: str, doc: str) -> Headline:
        low, high = interval(replicates[name])
        return Headline(name, float(row[name]), unit, doc, n, low, high)

    return (
        mean("cross_entropy", "nats/token", "mean -ln p(next token)"),
        mean("entropy", "nats/token", "mean predictive entropy"),
        Headline("ece", float(row["ece"]), "1", "expected calibration error of the top-1", n),
        mean("top1", "1", "share of tokens predicted first"),
    )


def _checks(state: State, context: Context) -> tuple[Check, ...]:
    vocabulary = context.lens.model.config.vocab_size
    lowest = float(state.tensors["lowest_entropy"])
    highest = float(state.tensors["highest_entropy"])
    outside = max(0.0, -lowest, highest - math.log(vocabulary))
    tolerance = for_dtype("entropy_bounds", context.lens.placement.dtype)
    overflow = float(state.tensors["overflow"].sum())
    doc = "how far any predictive entropy lies outside [0, ln vocabulary], nats"
    lost = "predictions with a NaN or infinite logit, left out of every number"
    return (
        Check("entropy_bounds", outside, tolerance, outside <= tolerance, doc),
        Check("finite_logits", overflow, 0.0, overflow == 0.0, lost),
    )


def _warnings(state: State, context: Context) -> tuple[str, ...]:
    lost = int(state.tensors["overflow"].sum())
    if lost == 0:
        return ()
    return (
        f"{lost} predictions have a NaN or infinite logit in {context.lens.placement.dtype} and "
        "are left out of every number; open the model in float32",
    )
