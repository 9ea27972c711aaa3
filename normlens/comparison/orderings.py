"""Published orderings of training schemes, held against runs of several seeds.

A scheme is a way to train; a run of it with one seed is a draw. An ordering of two schemes is
*shown* when each has at least :data:`ENOUGH_SEEDS` runs and their bands, from the smallest to
the largest run, do not overlap; *not shown* when they do overlap or lie the other way round.
With fewer runs it *cannot be shown*: intervals over sequences leave out the variance of
training (metrics: statistics).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ENOUGH_SEEDS = 3


@dataclass(frozen=True)
class Ordering:
    """A published claim that one scheme has less of a measure than another.

    Attributes:
        less: scheme with the smaller value.
        more: scheme with the larger value; for ``equal`` their order says nothing.
        measure: name of the measure.
        published: what the source reports, with its figures.
        source: paper and place.
        equal: None, or the difference up to which the two count as equal.
    """

    less: str
    more: str
    measure: str
    published: str
    source: str
    equal: float | None = None

    @property
    def claim(self) -> str:
        """The ordering as a formula, e.g. ``rms < ln-gelu``."""
        return f"{self.less} {'<' if self.equal is None else '≈'} {self.more}"


@dataclass(frozen=True)
class Verdict:
    """What the runs say about an ordering.

    Attributes:
        ordering: the claim.
        status: ``shown``, ``not shown`` or ``cannot be shown``.
        words: why, with the values.
    """

    ordering: Ordering
    status: str
    words: str


def judge(ordering: Ordering, runs: Mapping[str, Sequence[float]]) -> Verdict:
    """Hold an ordering against the values of its measure.

    Args:
        ordering: the claim.
        runs: by scheme, one value per seed; a scheme that was not trained is missing.
    """
    names = (ordering.less, ordering.more)
    missing = [name for name in names if not runs.get(name)]
    if missing:
        return Verdict(ordering, "cannot be shown", f"not trained: {', '.join(missing)}")
    less, more = (runs[name] for name in names)
    values = f"{band(less)} against {band(more)}"
    agree = _agree(ordering, less, more)
    if min(len(less), len(more)) < ENOUGH_SEEDS:
        direction = "as published" if agree else "not as published"
        return Verdict(ordering, "cannot be shown", f"{values}, {direction}; needs more seeds")
    return Verdict(ordering, "shown" if agree else "not shown", values)


def band(values: Sequence[float]) -> str:
    """``4.53 (one seed)``, or ``4.51–4.55 (3 seeds)``."""
    if len(values) == 1:
        return f"{values[0]:.4g} (one seed)"
    return f"{min(values):.4g}–{max(values):.4g} ({len(values)} seeds)"


def _agree(ordering: Ordering, less: Sequence[float], more: Sequence[float]) -> bool:
    if ordering.equal is None:
        return max(less) < min(more)
    apart = max(max(less) - min(more), max(more) - min(less))
    return apart <= ordering.equal
