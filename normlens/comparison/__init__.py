"""Models side by side: headline numbers, paired differences, and the traps of comparing.

No torch: everything here reads stored Results.
"""

from __future__ import annotations

from normlens.comparison.headlines import (
    Difference,
    HeadlineRow,
    compare_headlines,
    difference,
    headline_rows,
    models_of,
    provenance_of,
    side_by_side,
)
from normlens.comparison.lineage import Relation, relations
from normlens.comparison.ranking import ranked_differences
from normlens.comparison.selected import at_selection
from normlens.comparison.selection import Selection
from normlens.comparison.traps import Caveat, caveats

__all__ = [
    "Caveat",
    "Difference",
    "HeadlineRow",
    "Relation",
    "Selection",
    "at_selection",
    "caveats",
    "compare_headlines",
    "difference",
    "headline_rows",
    "models_of",
    "provenance_of",
    "ranked_differences",
    "relations",
    "side_by_side",
]
