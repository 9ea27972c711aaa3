"""What differs most between models: headline differences, the clearest first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from normlens import catalog
from normlens.comparison.headlines import Difference, HeadlineRow, headline_rows, models_of
from normlens.comparison.selected import at_selection
from normlens.results import Result

__all__ = ["at_selection", "ranked_differences"]

RANKED_COLUMNS = (
    "analysis",
    "title",
    "headline",
    "doc",
    "unit",
    "model",
    "reference",
    "reference value",
    "model value",
    "delta",
    "delta low",
    "delta high",
    "score",
    "clear",
    "words",
)


def ranked_differences(results: Sequence[Result]) -> pd.DataFrame:
    """Headline numbers in the order in which they set the models apart.

    ``score = |delta| / half the width of its 95 % interval``: a difference is ``clear`` when its
    interval leaves out 0. Clear ones come first, then the others, by score; those without an
    interval or a value come last, in the order of the registry. ``words`` says what the row
    means, or why there is no number.

    Columns: :data:`RANKED_COLUMNS`; one row per headline number and model after the first.
    """
    models = models_of(results)
    records = [
        _ranked(row, model, models[0], row.differences[model])
        for row in headline_rows(results)
        for model in models[1:]
        if row.values.get(models[0]) is not None or row.values.get(model) is not None
    ]
    frame = pd.DataFrame.from_records(records, columns=list(RANKED_COLUMNS))
    order = frame.assign(score=frame["score"].fillna(-1)).sort_values(
        ["clear", "score"], ascending=False, kind="stable"
    )
    return frame.loc[order.index].reset_index(drop=True)


def _ranked(
    row: HeadlineRow, model: str, reference: str, found: Difference | None
) -> dict[str, Any]:
    theirs, ours = row.values.get(reference), row.values.get(model)
    delta = found or Difference(math.nan, reason=_missing(row, model, reference))
    half = (delta.high - delta.low) / 2
    return {
        "analysis": row.analysis,
        "title": catalog.get(row.analysis).title,
        "headline": row.name,
        "doc": row.doc,
        "unit": row.unit,
        "model": model,
        "reference": reference,
        "reference value": theirs.value if theirs else math.nan,
        "model value": ours.value if ours else math.nan,
        "delta": delta.value,
        "delta low": delta.low,
        "delta high": delta.high,
        "score": abs(delta.value) / half if half > 0 else math.nan,
        "clear": delta.clear,
        "words": _in_words(row, model, reference, delta),
    }


def _missing(row: HeadlineRow, model: str, reference: str) -> str:
    without = [
        name
        for name in (reference, model)
        if (number := row.values.get(name)) is None or not number.n
    ]
    return f"{' and '.join(without)} {'have' if len(without) > 1 else 'has'} no such number"


def _in_words(row: HeadlineRow, model: str, reference: str, delta: Difference) -> str:
    if not math.isfinite(delta.value):
        return f"no difference: {delta.reason}"
    unit = "" if row.unit in ("", "1") else f" {row.unit}"
    sizes = (
        "the same as" if delta.value == 0 else "higher than" if delta.value > 0 else "lower than"
    )
    by = "" if delta.value == 0 else f"{abs(delta.value):.3g}{unit} "
    said = f"{model} is {by}{sizes} {reference}"
    if delta.reason or not math.isfinite(delta.low):
        return f"{said}; no interval: {delta.reason or 'none was estimated'}"
    interval = f"[{delta.low:+.3g}, {delta.high:+.3g}]".replace("-", "−")
    return f"{said} {interval}: {'clear' if delta.clear else 'the interval holds 0'}"
