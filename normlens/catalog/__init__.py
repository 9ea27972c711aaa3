"""The registry: one declaration per analysis, in the order reports show them. No torch."""

from __future__ import annotations

import difflib

from normlens.catalog.attention_entropy import ATTENTION_ENTROPY
from normlens.catalog.branches import BRANCHES
from normlens.catalog.curves import CURVES
from normlens.catalog.declaration import Analysis, Citation, Need
from normlens.catalog.divergence import DIVERGENCE
from normlens.catalog.freeze_sweep import FREEZE_SWEEP
from normlens.catalog.gradients import GRADIENTS
from normlens.catalog.logit_attribution import LOGIT_ATTRIBUTION
from normlens.catalog.outlier_ablation import OUTLIER_ABLATION
from normlens.catalog.outliers import OUTLIERS
from normlens.catalog.output import OUTPUT
from normlens.catalog.prompt_attention import PROMPT_ATTENTION
from normlens.catalog.prompt_attribution import PROMPT_ATTRIBUTION
from normlens.catalog.prompt_patching import PROMPT_PATCHING
from normlens.catalog.prompt_scale import PROMPT_SCALE
from normlens.catalog.residual import RESIDUAL
from normlens.catalog.scale import SCALE
from normlens.errors import UnknownName

ALL: tuple[Analysis, ...] = (
    OUTPUT,
    DIVERGENCE,
    SCALE,
    CURVES,
    FREEZE_SWEEP,
    RESIDUAL,
    BRANCHES,
    GRADIENTS,
    ATTENTION_ENTROPY,
    OUTLIERS,
    OUTLIER_ABLATION,
    LOGIT_ATTRIBUTION,
    PROMPT_ATTRIBUTION,
    PROMPT_ATTENTION,
    PROMPT_SCALE,
    PROMPT_PATCHING,
)

__all__ = ["ALL", "Analysis", "Citation", "Need", "get"]


def get(name: str) -> Analysis:
    """The analysis of that name.

    Raises:
        UnknownName: there is none; the message names the closest.
    """
    for analysis in ALL:
        if analysis.name == name:
            return analysis
    names = [analysis.name for analysis in ALL]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UnknownName(f"no analysis {name!r}; {hint}analyses: {', '.join(names)}")
