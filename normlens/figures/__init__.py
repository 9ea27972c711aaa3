"""Results as plotly figures: always a list of models, of which one is the special case.

Figure functions are named by the declarations (``module:function``), take one Result and
return one figure. No torch.
"""

from __future__ import annotations

import importlib

import plotly.graph_objects as go

from normlens import catalog
from normlens.errors import UnknownName
from normlens.results import Result

__all__ = ["draw", "of"]


def draw(result: Result, name: str) -> go.Figure:
    """One figure of a result, by its declared name (``scale:by_site``).

    Raises:
        UnknownName: the result's analysis declares no such figure; the message lists them.
    """
    declared = catalog.get(result.analysis).figures
    if name not in declared:
        raise UnknownName(
            f"{result.analysis} has no figure {name!r}; its figures: {', '.join(declared)}"
        )
    module, function = name.split(":")
    return getattr(importlib.import_module(f"normlens.figures.{module}"), function)(result)


def of(result: Result) -> dict[str, go.Figure]:
    """Every figure of a result, by its declared name and in declaration order."""
    return {name: draw(result, name) for name in catalog.get(result.analysis).figures}
