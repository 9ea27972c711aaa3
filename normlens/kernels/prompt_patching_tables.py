"""From logit differences under patches to the tables of ``prompt-patching``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from normlens.capture.protocol import Context, Finding
from normlens.kernels.patching import KINDS, Place
from normlens.kernels.token_strings import token_string
from normlens.models.tokenizers import tokenizer_of
from normlens.results import Check, Headline
from normlens.text.prompt_sets import PromptPair
from normlens.tolerances import for_dtype


@dataclass(frozen=True)
class Baseline:
    """One prompt as it is.

    Attributes:
        difference: logit of the answer minus that of the wrong one.
        answer, wrong: probabilities of the two.
        largest: the largest absolute logit.
    """

    difference: float
    answer: float
    wrong: float
    largest: float

    @staticmethod
    def of(logits: Float[Tensor, " vocab"], pair: PromptPair) -> Baseline:
        """From the logits of the last position."""
        wide = logits.double()
        probabilities = wide.softmax(-1)
        return Baseline(
            float(wide[pair.answer_id] - wide[pair.wrong_id]),
            float(probabilities[pair.answer_id]),
            float(probabilities[pair.wrong_id]),
            float(wide.abs().max()),
        )


@dataclass(frozen=True, eq=False)
class Patched:
    """Logit differences under the patches of single activations.

    Attributes:
        places: what was replaced.
        start: the first position at which the prompts differ.
        difference: at the positions from there on.
    """

    places: tuple[Place, ...]
    start: int
    difference: Float[Tensor, "place pos"]


def summarise(
    context: Context,
    pair: PromptPair,
    baselines: Sequence[Baseline],
    measured: Patched,
    nothing: Float[Tensor, ""],
    everything: Float[Tensor, " control"],
) -> Finding:
    """Tables, headline numbers, checks and warnings.

    Args:
        context: of the run.
        pair: the two prompts.
        baselines: of the clean and of the corrupted prompt.
        measured: under patches of one activation.
        nothing: logit difference when nothing is replaced.
        everything: when all there is at one depth, or everywhere, is replaced.
    """
    clean, corrupted = baselines
    gap = clean.difference - corrupted.difference
    known = math.isfinite(gap) and abs(gap) >= context.parameters.smallest_gap
    table = _recovery_table(context, pair, measured, corrupted.difference, gap if known else None)
    return Finding(
        tables={"recovery": table, "runs": _runs_table(context, pair, baselines)},
        headline=_headline(table, clean, corrupted, known=known),
        checks=_checks(context, baselines, nothing, everything),
        warnings=_warnings(context, gap, known=known),
    )


def _recovery_table(
    context: Context, pair: PromptPair, measured: Patched, corrupted: float, gap: float | None
) -> pd.DataFrame:
    tokens, count = len(pair.clean_ids), len(measured.places)
    # Before the prompts differ a patch puts in what is there already.
    difference = np.full((count, tokens), corrupted)
    difference[:, measured.start :] = measured.difference.numpy()
    recovery = (difference - corrupted) / (math.nan if gap is None else gap)
    finite = np.isfinite(difference)
    last = max(place.point for place in measured.places)
    tokenizer = tokenizer_of(context.lens)
    clean, other = (
        [token_string(tokenizer, token) for token in ids]
        for ids in (pair.clean_ids, pair.corrupted_ids)
    )
    places = [place for place in measured.places for _ in range(tokens)]
    unknown = "ok" if gap is not None else "not_applicable"
    return pd.DataFrame(
        {
            "what": [place.what for place in places],
            "point": [place.point for place in places],
            "layer": pd.array(
                [None if place.point == last else place.point for place in places], dtype="Int64"
            ),
            "position": np.tile(np.arange(tokens, dtype=np.int32), count),
            "token": clean * count,
            "corrupted_token": other * count,
            "difference": np.where(finite, difference, math.nan).flatten(),
            "recovery": np.where(finite, recovery, math.nan).flatten(),
            "status": np.where(finite, unknown, "overflow").flatten(),
        }
    )


def _runs_table(context: Context, pair: PromptPair, baselines: Sequence[Baseline]) -> pd.DataFrame:
    tokenizer = tokenizer_of(context.lens)
    return pd.DataFrame(
        {
            "run": ["clean", "corrupted"],
            "answer": token_string(tokenizer, pair.answer_id),
            "wrong": token_string(tokenizer, pair.wrong_id),
            "difference": [one.difference for one in baselines],
            "answer_probability": [one.answer for one in baselines],
            "wrong_probability": [one.wrong for one in baselines],
        }
    )


def _headline(
    table: pd.DataFrame, clean: Baseline, corrupted: Baseline, *, known: bool
) -> tuple[Headline, ...]:
    what = "logit of the answer minus that of the wrong one, {} prompt"
    numbers = [
        Headline("clean_difference", clean.difference, "logits", what.format("clean"), 1),
        Headline(
            "corrupted_difference", corrupted.difference, "logits", what.format("corrupted"), 1
        ),
    ]
    for kind in KINDS[1:]:
        best = table.loc[table["what"] == kind, "recovery"].max()
        doc = f"largest recovery by one position of one block's {kind} output"
        numbers.append(Headline(f"{kind}_largest", float(best), "1", doc, int(known)))
    return tuple(numbers)


def _checks(
    context: Context,
    baselines: Sequence[Baseline],
    nothing: Float[Tensor, ""],
    everything: Float[Tensor, " control"],
) -> tuple[Check, ...]:
    clean, corrupted = baselines
    largest = max(clean.largest, corrupted.largest)
    tolerance = for_dtype("patching", context.lens.placement.dtype)
    values = {
        "patching_everything_recovers": (
            float((everything - clean.difference).abs().max()) / largest,
            "the clean run's activations at every position, at each depth and everywhere: "
            "|difference - clean difference| / max |logit|, so recovery is 1",
        ),
        "patching_nothing_changes": (
            float((nothing - corrupted.difference).abs()) / largest,
            "no activation replaced: |difference - corrupted difference| / max |logit|, so "
            "recovery is 0",
        ),
    }
    return tuple(
        Check(name, value, tolerance, value <= tolerance, doc)
        for name, (value, doc) in values.items()
    )


def _warnings(context: Context, gap: float, *, known: bool) -> tuple[str, ...]:
    name = context.lens.identity.name
    if not known:
        return (
            f"{name}: the prompts differ by {gap:.2g} logits, less than "
            f"{context.parameters.smallest_gap:g}; no recovery is given",
        )
    if gap < 0:
        return (
            f"{name}: the corrupted prompt asks more for the answer than the clean one (by "
            f"{-gap:.3g} logits); recovery 1 is the clean prompt's difference all the same",
        )
    return ()
