"""Headline numbers of several models and their paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from normlens import catalog
from normlens.results import Headline, Result, concat

REPLICATES = "replicates"
LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """A headline number of a model minus that of the reference.

    Attributes:
        value: the difference; NaN where it would mean nothing.
        low: lower end of the 95 % interval from paired bootstrap replicates, else NaN.
        high: its upper end.
        reason: why there is no value or no interval; empty otherwise.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    reason: str = ""

    @property
    def clear(self) -> bool:
        """Whether the interval exists and leaves out 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class HeadlineRow:
    """One headline number for every model; None where a model has none."""

    analysis: str
    name: str
    unit: str
    doc: str
    values: Mapping[str, Headline | None]
    differences: Mapping[str, Difference | None]


def side_by_side(results: Sequence[Result]) -> tuple[Result, ...]:
    """One Result per analysis, in registry order, with the models of all its results.

    Raises:
        UsageError: results of one analysis that cannot be put side by side.
    """
    by_analysis: dict[str, list[Result]] = {}
    for result in results:
        by_analysis.setdefault(result.analysis, []).append(result)
    rank = {analysis.name: i for i, analysis in enumerate(catalog.ALL)}
    names = sorted(by_analysis, key=lambda name: rank.get(name, len(rank)))
    return tuple(concat(by_analysis[name]) for name in names)


def models_of(results: Sequence[Result]) -> tuple[str, ...]:
    """Every model, in the order of first appearance."""
    return tuple(dict.fromkeys(model for result in results for model in result.models))


def provenance_of(results: Sequence[Result]) -> dict[str, Mapping[str, Any]]:
    """The provenance of every model, from the first result that has it."""
    found: dict[str, Mapping[str, Any]] = {}
    for result in results:
        for model, provenance in result.provenance.items():
            found.setdefault(model, provenance)
    return found


def incomparable(reference: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Why numbers per token of two models must not be subtracted; empty when they may.

    Models must have read the same tokens: equal tokenizer, corpus, BOS policy and counts.
    """
    facts = {
        "tokenizer_sha256": "their tokenizers differ",
        "corpus_sha256": "they read different texts",
        "bos": "their BOS policies differ",
        "sequences": "they read different numbers of sequences",
        "tokens": "they read different numbers of tokens",
    }
    for key, reason in facts.items():
        if reference.get(key) != other.get(key):
            return reason
    return ""


def difference(result: Result, headline: str, model: str, reference: str) -> Difference | None:
    """``model`` minus ``reference`` in one headline number.

    The interval holds the central 95 % of the differences between bootstrap replicates of
    equal index. Replicates are paired because a document's weights depend on the seed and
    its id alone (metrics: paired bootstrap, clustered by document).

    Returns:
        None where either model lacks the number or has no data for it.
    """
    first, second = _headline(result, reference, headline), _headline(result, model, headline)
    if first is None or second is None or not first.n or not second.n:
        return None
    ours, theirs = result.provenance.get(model, {}), result.provenance.get(reference, {})
    reason = incomparable(theirs, ours)
    # On a prompt the description names the target, which models may predict differently.
    if catalog.get(result.analysis).runs_on == "prompt" and first.doc != second.doc:
        reason = "their targets differ"
    if reason:
        return Difference(math.nan, reason=reason)
    value = second.value - first.value
    pairs = _paired_replicates(result, headline, model, reference)
    if not len(pairs):
        return Difference(value, reason="no paired replicates")
    if theirs.get("seed") != ours.get("seed"):
        return Difference(value, reason="bootstrap seeds differ")
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(pairs, [tail, 1 - tail])
    return Difference(value, float(low), float(high))


def headline_rows(results: Sequence[Result]) -> tuple[HeadlineRow, ...]:
    """Every headline number of every analysis, with differences from the first model."""
    rows = []
    models = models_of(results)
    for result in side_by_side(results):
        names = dict.fromkeys(h.name for m in result.models for h in result.headline.get(m, ()))
        for name in names:
            values = {model: _headline(result, model, name) for model in models}
            found = [value for value in values.values() if value is not None]
            shown = next((value for value in found if value.n), found[0])
            differences = {
                model: difference(result, name, model, models[0]) for model in models[1:]
            }
            rows.append(
                HeadlineRow(result.analysis, name, shown.unit, shown.doc, values, differences)
            )
    return tuple(rows)


def compare_headlines(results: Sequence[Result]) -> pd.DataFrame:
    """The headline table: one row per number, side by side for all models.

    Columns: ``analysis``, ``headline``, ``unit``, ``doc``; for every model ``M``:
    ``M value``, ``M low``, ``M high`` (95 % interval) and ``M n``; for every model but the
    first also ``M delta``, ``M delta low`` and ``M delta high``: the difference from the
    first model with its paired bootstrap interval. NaN where there is none.
    """
    records = []
    for row in headline_rows(results):
        record: dict[str, Any] = {
            "analysis": row.analysis,
            "headline": row.name,
            "unit": row.unit,
            "doc": row.doc,
        }
        for model, number in row.values.items():
            record[f"{model} value"] = number.value if number else math.nan
            record[f"{model} low"] = number.low if number else math.nan
            record[f"{model} high"] = number.high if number else math.nan
            record[f"{model} n"] = number.n if number else 0
        for model, delta in row.differences.items():
            record[f"{model} delta"] = delta.value if delta else math.nan
            record[f"{model} delta low"] = delta.low if delta else math.nan
            record[f"{model} delta high"] = delta.high if delta else math.nan
        records.append(record)
    return pd.DataFrame.from_records(records)


def _headline(result: Result, model: str, name: str) -> Headline | None:
    return next((h for h in result.headline.get(model, ()) if h.name == name), None)


def _paired_replicates(result: Result, headline: str, model: str, reference: str) -> np.ndarray:
    """Finite differences of replicates with equal index; empty without replicates."""
    table = result.tables.get(REPLICATES)
    if table is None:
        return np.empty(0)
    of_headline = table[table["headline"] == headline]
    ours, theirs = (
        of_headline[of_headline["model"] == name].set_index("replicate")["value"].astype(float)
        for name in (model, reference)
    )
    differences = (ours - theirs).to_numpy()
    finite = differences[np.isfinite(differences)]
    # As for single intervals: none when more than half of the replicates are undefined.
    return finite if 2 * len(finite) >= len(differences) else np.empty(0)
